"""NIfTI, PNG and safetensors files whose headers say something else, and with other values."""

from __future__ import annotations

import gzip
import io
import json
import math
import struct
import zlib

import nibabel
import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from PIL import Image

from tests.campaign.damage.arrays import damage_array
from tests.campaign.damage.documents import damage_node
from tests.support.scenes import grey_png

ODD_INTS = (0, -1, 1, 2, 3, 5, 7, 100, 32767, -32768)
ODD_FLOATS = (0.0, -1.0, math.nan, math.inf, -math.inf, 1e38, 1e-38, 2.0)
NIFTI_FIELDS = (
    *(("<h", 40 + 2 * k, ODD_INTS) for k in range(8)),  # dim
    *(("<h", at, (0, 2, 4, 8, 16, 32, 64, 128, 512, 1536, 9999)) for at in (70, 72)),  # datatype, bitpix
    ("<f", 108, (*ODD_FLOATS, 348.0, 353.0, 368.0, 1e9)),  # vox_offset
    *(("<f", at, ODD_FLOATS) for at in (112, 116)),  # scl_slope, scl_inter
    *(("<f", 76 + 4 * k, ODD_FLOATS) for k in range(8)),  # pixdim
    *(("<f", 256 + 4 * k, ODD_FLOATS) for k in range(18)),  # quaternion and srow
    *(("<h", at, ODD_INTS) for at in (252, 254)),  # qform_code, sform_code
    ("4s", 0, (b"\x1c\x02\0\0", b"\0\0\x01\x5c")),  # sizeof_hdr
    ("4s", 344, (b"ni1\0", b"n+2\0")),  # magic
    ("4s", 348, (b"\1\0\0\0",)),  # extension
)
MODES = ("1", "L", "P", "RGB", "RGBA", "LA", "I;16")
TYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "BOOL": "|b1", "U8": "|u1", "F16": "<f2"}
VALUES = (np.nan, np.inf, -np.inf, 1e300, -1e300, 1e30, 0.0, -1.0, 1e-300, 7.0)


def damage_nifti(draw: DrawFn, content: bytes) -> bytes:
    """Return a NIfTI file with one structural change of header or values."""
    found = bytearray(content)
    if draw(st.integers(0, 9)) < 6:
        kind, at, values = draw(st.sampled_from(NIFTI_FIELDS))
        struct.pack_into(kind, found, at, draw(st.sampled_from(values)))
        return bytes(found)
    image = nibabel.Nifti1Image.from_bytes(content)
    changed = damage_array(draw, np.asanyarray(image.dataobj))
    packed: bytes = nibabel.Nifti1Image(changed, image.affine, dtype=changed.dtype).to_bytes()
    return packed


def damage_packed(draw: DrawFn, content: bytes) -> bytes:
    """Return a .nii.gz file with a changed NIfTI file inside, or several streams, or none."""
    kind = draw(st.sampled_from(("inside",) * 8 + ("plain", "double", "empty", "short")))
    plain = gzip.decompress(content)
    if kind in ("plain", "double"):
        return plain if kind == "plain" else content + content
    if kind == "inside":
        plain = damage_nifti(draw, plain)
    elif kind == "short":
        plain = plain[: draw(st.integers(0, len(plain) - 1))]
    return gzip.compress(b"" if kind == "empty" else plain, 1, mtime=0)


def damage_png(draw: DrawFn, content: bytes) -> bytes:
    """Return a picture with another header, mode, size or value."""
    kind = draw(st.sampled_from(("header", "header", "mode", "size", "value", "value", "bits")))
    if kind == "header":
        return _with_ihdr(draw, content)
    with Image.open(io.BytesIO(content)) as picture:
        picture.load()
        changed: Image.Image = picture
        if kind == "mode":
            mode = draw(st.sampled_from(MODES))
            wide = np.asarray(picture.convert("L")).astype(np.uint16)
            changed = Image.fromarray(wide) if mode == "I;16" else picture.convert(mode)
        elif kind == "bits":
            depth = draw(st.sampled_from((1, 2, 4)))
            before = draw(st.sampled_from(((), ((b"tEXt", b"a\0" + b"\xff" * 30),))))
            return grey_png(np.minimum(np.asarray(picture.convert("L")), 2**depth - 1), depth, *before)
        elif kind == "size":
            sizes = ((1, 1), (picture.width + 1, picture.height), (picture.height, picture.width), (200, 1))
            changed = picture.resize(draw(st.sampled_from(sizes)))
        else:
            pixels = np.array(picture)
            pixels.reshape(-1)[draw(st.integers(0, pixels.size - 1))] = draw(st.sampled_from((1, 3, 7, 9, 200, 255)))
            changed = Image.fromarray(pixels)
        file = io.BytesIO()
        formats = ("png", "png", "png", "webp", "tiff") if changed.mode == "RGB" else ("png",)
        changed.save(file, draw(st.sampled_from(formats)))
    return file.getvalue()


def _with_ihdr(draw: DrawFn, content: bytes) -> bytes:
    """Return a PNG whose IHDR says something else, with a matching checksum."""
    fields, at = list(struct.unpack(">IIBBBBB", content[16:29])), draw(st.integers(0, 6))
    sizes, others = (0, 1, 65535, 100_000, 2**31 - 1), (0, 1, 2, 3, 4, 6, 7, 8, 16, 200)
    fields[at] = draw(st.sampled_from(sizes if at < 2 else others))
    header = b"IHDR" + struct.pack(">IIBBBBB", *fields)
    return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]


def damage_safetensors(draw: DrawFn, content: bytes) -> bytes:
    """Return a file with other learned values, or a header that says something else of them."""
    size = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
    name = draw(st.sampled_from([name for name in header if name != "__metadata__"]))
    about = header.get("__metadata__", {})
    kinds = (
        ("value",) * 5 + ("rename", "shape", "dtype", "data_offsets", "any") + ("notes",) * (10 * ("notes" in about))
    )
    kind = draw(st.sampled_from(kinds))
    if kind == "notes":
        notes = json.loads(about["notes"])
        damage_node(draw, notes)
        about["notes"] = json.dumps(notes)
    elif kind == "value":
        _set_value(draw, header[name], data)
    elif kind == "rename":
        header[f"{name}x"] = header.pop(name)
    elif kind == "any":
        damage_node(draw, header)
    else:
        others = {
            "shape": ([], [0], [1], [3], [2**40], [-1], [1, *header[name]["shape"]], "3"),
            "dtype": (*TYPES, "F8", "x", None),
            "data_offsets": ([0, 0], [0, 2**60], [8, 0], [-1, 8], [0, len(data)], None),
        }
        header[name][kind] = draw(st.sampled_from(others[kind]))
    text = json.dumps(header).encode()
    length = draw(st.sampled_from((len(text),) * 20 + (0, 2**63, len(text) + 1, 10**9)))
    return struct.pack("<Q", length) + text + bytes(data)


def _set_value(draw: DrawFn, entry: dict, data: bytearray) -> None:
    start, stop = entry["data_offsets"]
    array = np.frombuffer(bytes(data[start:stop]), TYPES[entry["dtype"]]).copy()
    if not array.size:
        return
    one = draw(st.integers(0, array.size - 1))
    with np.errstate(all="ignore"):
        if array.dtype.kind == "f":
            array[slice(None) if draw(st.integers(0, 9)) < 3 else one] = draw(st.sampled_from(VALUES))
        else:
            array[one] = draw(st.sampled_from((0, 1)))
    data[start:stop] = array.tobytes()
