"""NIfTI headers with other dimensions, types, scalings and geometry."""

from __future__ import annotations

import gzip
import math
import struct
from random import Random

import nibabel
import numpy as np

from tests.campaign.mutators.arrays import changed_shape, changed_type, changed_values

ODD_INTS = (0, -1, 1, 2, 3, 5, 7, 100, 32767, -32768)
ODD_FLOATS = (0.0, -1.0, math.nan, math.inf, -math.inf, 1e38, 1e-38, 2.0)


def mutate_nifti(rng: Random, content: bytes) -> bytes:
    """Return a NIfTI file with one structural change of header or values."""
    if rng.random() < 0.4:
        return _with_values(rng, content)
    found = bytearray(content)
    kind = rng.randrange(10)
    if kind < 3:  # dim: eight int16
        struct.pack_into("<h", found, 40 + 2 * rng.randrange(8), rng.choice(ODD_INTS))
    elif kind == 3:  # datatype, bitpix
        struct.pack_into("<h", found, rng.choice((70, 72)), rng.choice((0, 2, 4, 8, 16, 32, 64, 128, 512, 1536, 9999)))
    elif kind == 4:  # vox_offset
        struct.pack_into("<f", found, 108, rng.choice((*ODD_FLOATS, 348.0, 353.0, 368.0, 1e9)))
    elif kind == 5:  # scl_slope, scl_inter
        struct.pack_into("<f", found, rng.choice((112, 116)), rng.choice(ODD_FLOATS))
    elif kind == 6:  # pixdim
        struct.pack_into("<f", found, 76 + 4 * rng.randrange(8), rng.choice(ODD_FLOATS))
    elif kind == 7:  # srow and quaternions
        struct.pack_into("<f", found, 256 + 4 * rng.randrange(18), rng.choice(ODD_FLOATS))
    elif kind == 8:  # qform_code, sform_code
        struct.pack_into("<h", found, rng.choice((252, 254)), rng.choice(ODD_INTS))
    else:  # sizeof_hdr, magic, extension flag
        at, value = rng.choice(
            ((0, b"\x1c\x02\0\0"), (0, b"\0\0\x01\x5c"), (344, b"ni1\0"), (344, b"n+2\0"), (348, b"\1\0\0\0"))
        )
        found[at : at + 4] = value
    return bytes(found)


def _with_values(rng: Random, content: bytes) -> bytes:
    image = nibabel.Nifti1Image.from_bytes(content)
    array = np.asanyarray(image.dataobj)
    change = rng.choice((changed_values, changed_values, changed_shape, changed_type))
    changed = change(rng, array)
    found: bytes = nibabel.Nifti1Image(changed, image.affine, dtype=changed.dtype).to_bytes()
    return found


def mutate_packed(rng: Random, content: bytes) -> bytes:
    """Return a .nii.gz file with a changed NIfTI file inside, or several streams, or none."""
    kind = rng.randrange(12)
    plain = gzip.decompress(content)
    if kind == 0:
        return plain
    if kind == 1:
        return content + content
    if kind == 2:
        return gzip.compress(b"", 1, mtime=0)
    if kind == 3:
        return gzip.compress(plain[: rng.randrange(len(plain))], 1, mtime=0)
    return gzip.compress(mutate_nifti(rng, plain), 1, mtime=0)
