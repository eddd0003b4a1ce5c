"""Arrays of NumPy with other values, shapes, types and headers; archives with other members."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

DTYPES = ("<f2", ">f4", "<f8", "<i1", "<u2", "<i4", ">i8", "<u8", "|b1", "<c8", "|S3", "<U2", "<M8[s]", "|V4", "<f16")
DESCRIPTIONS = ("'|O'", "'<f4x'", "[('a', '<f4')]", "'<f0'", "('<f4', (2,))", "'>i4'", "None", "'<f4' * 9**9", "''")
SHAPES = (
    "()", "(0,)", "(3,)", "(3, -1, 6)", "(1000000000000,)", "(3, 7, 6, 1)", "(3.0, 7, 6)", "(True, 7, 6)", "3",
    "(3, 1099511627776, 6)", "[3, 7, 6]", "('3', 7, 6)", "(9223372036854775807, 9223372036854775807)",
    "(4294967296, 4294967296, 1)", "(3, 6, 7)", "(2, 7, 6)", "(0, 7, 6)", "((((3))), 7, 6)",
)  # fmt: skip
VALUES = (np.nan, np.inf, -np.inf, 1e30, -1e30, 3e38, 1e-45, 0.0, -0.0, 65504.0, 255, 256, -1, 2**53, 0.5, 1.0, 3)
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) * 4 + (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
HUGE = ((3, 10**6, 10**6), (10**13,), (3, 2**31, 2**31), (2**62, 4))


def damage_npy(draw: DrawFn, content: bytes) -> bytes:
    """Return a .npy file with one structural change."""
    if draw(st.integers(0, 9)) < 3:
        return _with_header(draw, content)
    array = damage_array(draw, np.load(io.BytesIO(content), allow_pickle=False))
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def damage_array(draw: DrawFn, array: np.ndarray) -> np.ndarray:
    """Return an array with other values, another shape or another type."""
    change = draw(st.sampled_from((_values, _values, _values, _shape, _shape, _type)))
    with np.errstate(all="ignore"):
        return change(draw, array)


def _values(draw: DrawFn, array: np.ndarray) -> np.ndarray:
    """Return the array with one value, a row, a class or everything replaced."""
    found = array.copy()
    if not found.size or found.dtype.kind not in "fiub":
        return found
    value = draw(st.sampled_from(VALUES))
    if found.dtype.kind != "f":
        limits = (0, 1) if found.dtype.kind == "b" else (np.iinfo(found.dtype).min, np.iinfo(found.dtype).max)
        value = int(np.clip(np.nan_to_num(value), *(float(limit) for limit in limits))) if abs(value) < 1e9 else 1
    where = draw(st.sampled_from(("one", "one", "row", "column", "scale", "all"))) if found.ndim else "all"
    if where == "one":
        found.reshape(-1)[draw(st.integers(0, found.size - 1))] = value
    elif where == "row":
        found[draw(st.integers(0, len(found) - 1))] = value
    elif where == "column":
        found[..., draw(st.integers(0, found.shape[-1] - 1))] = value
    elif where == "scale" and found.dtype.kind == "f":
        found = (found * found.dtype.type(draw(st.sampled_from((1e20, 1e-20, -1, 0))))).astype(found.dtype)
    else:
        found[...] = value
    return found


def _shape(draw: DrawFn, array: np.ndarray) -> np.ndarray:
    """Return the array with another shape."""
    if array.ndim == 0:
        return array[None]
    axis = draw(st.integers(0, array.ndim - 1))
    length = array.shape[axis]
    changes: tuple[Callable[[], np.ndarray], ...] = (
        lambda: array.T,
        lambda: np.asfortranarray(array),
        lambda: np.expand_dims(array, axis),
        lambda: np.take(array, 0, axis) if length else array,
        lambda: np.delete(array, 0, axis) if length else array,
        lambda: np.delete(array, range(length), axis),
        lambda: np.concatenate([array, array], axis),
        lambda: array.reshape(-1),
    )
    changed = draw(st.sampled_from(changes))()
    return changed if changed.flags.f_contiguous else np.ascontiguousarray(changed)


def _type(draw: DrawFn, array: np.ndarray) -> np.ndarray:
    """Return the array as another type of number, or as something that is no number."""
    return array.astype(np.dtype(draw(st.sampled_from(DTYPES))))


def damage_chunk(draw: DrawFn, content: bytes) -> bytes:
    """Return a chunk of a Zarr store with other values, or more or fewer of them."""
    packed = content[:2] == b"\x1f\x8b"
    plain = gzip.decompress(content) if packed else content
    changed = damage_array(draw, np.frombuffer(plain, "u1" if len(plain) % 4 else "<f4")).tobytes()
    return gzip.compress(changed, 1, mtime=0) if packed else changed


def _with_header(draw: DrawFn, content: bytes) -> bytes:
    """Return a file whose header declares something else about the same bytes."""
    length = struct.unpack("<H", content[8:10])[0]
    header, data = content[10 : 10 + length].decode("latin-1"), content[10 + length :]
    descr, shape = header.split("'descr': ")[1].split(", 'fortran")[0], header.split("'shape': ")[1].rsplit(", }")[0]
    order = st.sampled_from(("True", "1", "None", "[]")).map(lambda value: f"'fortran_order': {value}")
    others = ("{}", "(" * 300, "{" + header, header + header, header.replace("shape", "form"), "\0" * 64)
    versions = st.sampled_from((b"\x02\x00", b"\x03\x00", b"\x01\x01", b"\x09\x00"))
    kind, version = draw(st.sampled_from(("descr", "type", "shape", "order", "header", "version"))), b"\x01\x00"
    if kind == "version":
        version = draw(versions)
    elif kind == "header":
        header = draw(st.sampled_from(others))
    elif kind == "order":
        header = header.replace("'fortran_order': False", draw(order))
    elif kind == "shape":
        header = header.replace(shape, draw(st.sampled_from(SHAPES)))
    else:
        types = st.sampled_from(DTYPES).map(repr)
        header = header.replace(descr, draw(st.sampled_from(DESCRIPTIONS) if kind == "descr" else types))
    text = header.rstrip().encode("latin-1") + b"\n"
    size = struct.pack("<I" if version[0] in (2, 3) else "<H", min(len(text), 65535))
    return content[:6] + version + size + text + data


def damage_npz(draw: DrawFn, content: bytes) -> bytes:
    """Return an archive with a changed member, other members, or a member that promises terabytes."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = draw(st.sampled_from(list(members)))
    kind = draw(st.sampled_from(("inside", "inside", "inside", "rename", "double", "remove", "replace", "promise")))
    if kind == "inside":
        members[name] = damage_npy(draw, members[name])
    elif kind == "rename":
        others = ("logits", "probabilities", "labels", "softmax", "arr_0", "../x", "", "a" * 300)
        members[f"{draw(st.sampled_from(others))}.npy"] = members.pop(name)
    elif kind == "double":
        members[f"{draw(st.sampled_from(('logits', 'probabilities', 'labels', 'extra')))}.npy"] = members[name]
    elif kind == "remove":
        members.pop(name)
    elif kind == "replace":
        members[name] = draw(st.sampled_from((b"", b"\x93NUMPY", b"\x80\x04.", members[name][:40])))
    else:
        file, shape = io.BytesIO(), draw(st.sampled_from(HUGE))
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        members[name] = file.getvalue() + members[name][-100:]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", draw(st.sampled_from(COMPRESSIONS))) as archive:
        for member, data in members.items():
            archive.writestr(zipfile.ZipInfo(member), data)
    return file.getvalue()
