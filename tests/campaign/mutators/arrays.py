"""Arrays of NumPy with other values, shapes, types and headers; archives with other members."""

from __future__ import annotations

import io
import struct
import zipfile
from random import Random

import numpy as np

DTYPES = ("<f2", ">f4", "<f8", "<i1", "<u2", "<i4", ">i8", "<u8", "|b1", "<c8", "|S3", "<U2", "<M8[s]", "|V4", "<f16")
DESCRIPTIONS = ("'|O'", "'<f4x'", "[('a', '<f4')]", "'<f0'", "('<f4', (2,))", "'>i4'", "None", "'<f4' * 9**9", "''")
SHAPES = (
    "()", "(0,)", "(3,)", "(3, -1, 6)", "(1000000000000,)", "(3, 7, 6, 1)", "(3.0, 7, 6)", "(True, 7, 6)", "3",
    "(3, 1099511627776, 6)", "[3, 7, 6]", "('3', 7, 6)", "(9223372036854775807, 9223372036854775807)",
    "(4294967296, 4294967296, 1)", "(3, 6, 7)", "(2, 7, 6)", "(0, 7, 6)", "((((3))), 7, 6)",
)  # fmt: skip
VALUES = (np.nan, np.inf, -np.inf, 1e30, -1e30, 3e38, 1e-45, 0.0, -0.0, 65504.0, 255, 256, -1, 2**53, 0.5, 1.0, 3)


def mutate_npy(rng: Random, content: bytes) -> bytes:
    """Return a .npy file with one structural change."""
    array = np.load(io.BytesIO(content), allow_pickle=False)
    kind = rng.randrange(10)
    if kind < 4:
        return _saved(changed_values(rng, array))
    if kind < 6:
        return _saved(changed_shape(rng, array))
    if kind == 6:
        return _saved(changed_type(rng, array))
    return _with_header(rng, content)


def _saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def changed_values(rng: Random, array: np.ndarray) -> np.ndarray:
    """Return the array with one value, a row, a class or everything replaced."""
    found = array.copy()
    if not found.size or found.dtype.kind not in "fiub":
        return found
    value = rng.choice(VALUES)
    if found.dtype.kind != "f":
        limits = (0, 1) if found.dtype.kind == "b" else (np.iinfo(found.dtype).min, np.iinfo(found.dtype).max)
        value = int(np.clip(np.nan_to_num(value), *(float(limit) for limit in limits))) if abs(value) < 1e9 else 1
    where = rng.randrange(5)
    with np.errstate(all="ignore"):
        if where < 2 or found.ndim == 0:
            found.reshape(-1)[rng.randrange(found.size)] = value
        elif where == 2:
            found[rng.randrange(len(found))] = value
        elif where == 3:
            found[..., rng.randrange(found.shape[-1])] = value
        elif found.dtype.kind == "f" and rng.random() < 0.5:
            found = (found * found.dtype.type(rng.choice((1e20, 1e-20, -1, 0)))).astype(found.dtype)
        else:
            found[...] = value
    return found


def changed_shape(rng: Random, array: np.ndarray) -> np.ndarray:
    """Return the array with another shape."""
    if array.ndim == 0:
        return array[None]
    axis = rng.randrange(array.ndim)
    length = array.shape[axis]
    changed = rng.choice((
        lambda: array.T,
        lambda: np.asfortranarray(array),
        lambda: np.expand_dims(array, axis),
        lambda: np.take(array, 0, axis) if length else array,
        lambda: np.delete(array, 0, axis) if length else array,
        lambda: np.delete(array, range(length), axis),
        lambda: np.concatenate([array, array], axis),
        lambda: array.reshape(-1),
    ))()  # fmt: skip
    return changed if changed.flags.f_contiguous else np.ascontiguousarray(changed)


def changed_type(rng: Random, array: np.ndarray) -> np.ndarray:
    """Return the array as another type of number, or as something that is no number."""
    with np.errstate(all="ignore"):
        return array.astype(np.dtype(rng.choice(DTYPES)))


def _with_header(rng: Random, content: bytes) -> bytes:
    """Return a file whose header declares something else about the same bytes."""
    length = struct.unpack("<H", content[8:10])[0]
    header, data = content[10 : 10 + length].decode("latin-1"), content[10 + length :]
    descr, shape = header.split("'descr': ")[1].split(", 'fortran")[0], header.split("'shape': ")[1].rsplit(", }")[0]
    kind = rng.randrange(7)
    if kind == 0:
        header = header.replace(descr, rng.choice(DESCRIPTIONS))
    elif kind == 1:
        header = header.replace(descr, f"'{rng.choice(DTYPES)}'")
    elif kind in (2, 3):
        header = header.replace(shape, rng.choice(SHAPES))
    elif kind == 4:
        header = header.replace("'fortran_order': False", f"'fortran_order': {rng.choice(('True', '1', 'None', '[]'))}")
    elif kind == 5:
        header = rng.choice(
            ("{}", "(" * 300, "{" + header, header + header, header.replace("shape", "form"), "\0" * 64)
        )
    version = rng.choice((b"\x02\x00", b"\x03\x00", b"\x01\x01", b"\x09\x00")) if kind == 6 else b"\x01\x00"
    text = header.rstrip().encode("latin-1") + b"\n"
    size = struct.pack("<I" if version[0] in (2, 3) else "<H", min(len(text), 65535))
    return content[:6] + version + size + text + data


def mutate_npz(rng: Random, content: bytes) -> bytes:
    """Return an archive with a changed member, other members, or a member that promises too much."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    kind = rng.randrange(10)
    if kind < 5:
        members[name] = mutate_npy(rng, members[name])
    elif kind == 5:
        other = rng.choice(("logits", "probabilities", "labels", "softmax", "arr_0", "../x", "", "a" * 300))
        members[f"{other}.npy"] = members.pop(name)
    elif kind == 6:
        members[f"{rng.choice(('logits', 'probabilities', 'labels', 'extra'))}.npy"] = members[name]
    elif kind == 7:
        members.pop(name)
    elif kind == 8:
        members[name] = rng.choice((b"", b"\x93NUMPY", b"\x80\x04.", members[name][:40]))
    else:
        members[name] = _promising(members[name], rng)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for member, data in members.items():
            archive.writestr(zipfile.ZipInfo(member), data)
    return file.getvalue()


def _promising(content: bytes, rng: Random) -> bytes:
    """Return a .npy member whose header declares terabytes."""
    file = io.BytesIO()
    shape = rng.choice(((3, 10**6, 10**6), (10**13,), (3, 2**31, 2**31), (2**62, 4)))
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue() + content[-100:]
