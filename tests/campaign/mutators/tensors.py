"""Safetensors files with other values, shapes, types and offsets."""

from __future__ import annotations

import json
import struct
from random import Random

import numpy as np

from tests.campaign.mutators.documents import _change_node

TYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "BOOL": "|b1", "U8": "|u1", "F16": "<f2"}
VALUES = (np.nan, np.inf, -np.inf, 1e300, -1e300, 1e30, 0.0, -1.0, 1e-300, 7.0)


def mutate_safetensors(rng: Random, content: bytes) -> bytes:
    """Return a file with other learned values, or a header that says something else of them."""
    size = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
    kind = rng.randrange(10)
    names = [name for name in header if name != "__metadata__"]
    name = rng.choice(names)
    if kind < 5:
        _set_value(rng, header[name], data)
    elif kind == 5:
        header[f"{name}x"] = header.pop(name)
    elif kind == 6:
        header[name]["shape"] = rng.choice(([], [0], [1], [3], [2**40], [-1], [1, *header[name]["shape"]], "3"))
    elif kind == 7:
        header[name]["dtype"] = rng.choice((*TYPES, "F8", "x", None))
    elif kind == 8:
        header[name]["data_offsets"] = rng.choice(([0, 0], [0, 2**60], [8, 0], [-1, 8], [0, len(data)], None))
    else:
        _change_node(rng, header)
    text = json.dumps(header).encode()
    length = len(text) if rng.random() < 0.95 else rng.choice((0, 2**63, len(text) + 1, 10**9))
    return struct.pack("<Q", length) + text + bytes(data)


def _set_value(rng: Random, entry: dict, data: bytearray) -> None:
    start, stop = entry["data_offsets"]
    array = np.frombuffer(bytes(data[start:stop]), TYPES[entry["dtype"]]).copy()
    if not array.size:
        return
    with np.errstate(all="ignore"):
        if array.dtype.kind == "f":
            array[rng.randrange(array.size) if rng.random() < 0.7 else slice(None)] = rng.choice(VALUES)
        else:
            array[rng.randrange(array.size)] = rng.choice((0, 1))
    data[start:stop] = array.tobytes()
