"""PNG pictures with other modes, sizes, values and headers."""

from __future__ import annotations

import io
import struct
import zlib
from random import Random

import numpy as np
from PIL import Image

MODES = ("1", "L", "P", "RGB", "RGBA", "LA", "I;16")


def mutate_png(rng: Random, content: bytes) -> bytes:
    """Return a picture with one structural change."""
    kind = rng.randrange(6)
    if kind < 2:
        return _with_header(rng, content)
    with Image.open(io.BytesIO(content)) as picture:
        picture.load()
        changed: Image.Image = picture
        if kind == 2:
            mode = rng.choice(MODES)
            base = picture.convert("L") if mode == "I;16" else picture
            changed = Image.fromarray(np.asarray(base).astype(np.uint16)) if mode == "I;16" else picture.convert(mode)
        elif kind == 3:
            sizes = ((1, 1), (picture.width + 1, picture.height), (picture.height, picture.width), (200, 1))
            changed = picture.resize(rng.choice(sizes))
        else:
            pixels = np.array(picture)
            pixels.reshape(-1)[rng.randrange(pixels.size)] = rng.choice((1, 3, 7, 9, 200, 255))
            changed = Image.fromarray(pixels)
        file = io.BytesIO()
        changed.save(file, rng.choice(("png", "png", "png", "webp", "tiff")) if changed.mode == "RGB" else "png")
    return file.getvalue()


def _with_header(rng: Random, content: bytes) -> bytes:
    """Return a PNG whose IHDR says something else, with a matching checksum."""
    fields = list(struct.unpack(">IIBBBBB", content[16:29]))
    at = rng.randrange(7)
    fields[at] = (
        rng.choice((0, 1, 65535, 100_000, 2**31 - 1)) if at < 2 else rng.choice((0, 1, 2, 3, 4, 6, 7, 8, 16, 200))
    )
    header = b"IHDR" + struct.pack(">IIBBBBB", *fields)
    return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]
