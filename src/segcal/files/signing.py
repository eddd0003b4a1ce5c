"""Signatures of single files: segcal replaces a file only if it wrote it and nobody has changed it since.

A signature holds the SHA-256 of everything else in the file, so that a document into which a table was pasted is not
mistaken for the table. Files in formats without a place for one (CSV, Parquet, torch.export) are never replaced.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_WORDS = "written by segcal, sha256"


class _Place(NamedTuple):
    """Place of the signature in a format: before these last bytes, as these bytes made of the signature's text."""

    end: bytes
    encoded: Callable[[str], bytes]


def _png_chunk(text: str) -> bytes:
    """Return a text chunk, which viewers skip."""
    content = b"tEXtsegcal\0" + text.encode()
    return struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))


def _onnx_entry(text: str) -> bytes:
    """Return an entry of the metadata of a model; protocol buffers may be continued by appending fields."""
    fields = b"".join(tag + bytes([len(part)]) + part for tag, part in ((b"\n", b"segcal"), (b"\x12", text.encode())))
    return b"\x72" + bytes([len(fields)]) + fields


_XML = _Place(b"", lambda text: f"<!-- {text} -->\n".encode())
_PERCENT = _Place(b"", lambda text: f"% {text}\n".encode())
_PLACES = {
    **dict.fromkeys((".html", ".htm", ".md", ".svg"), _XML),
    **dict.fromkeys((".tex", ".pdf"), _PERCENT),
    ".json": _Place(b"\n}\n", lambda text: f',\n  "signature": "{text}"'.encode()),
    ".png": _Place(b"\0\0\0\0IEND\xaeB`\x82", _png_chunk),
    ".onnx": _Place(b"", _onnx_entry),
}


def sign(path: Path) -> None:
    """Add a signature to a file, if its format has a place for one."""
    place = _PLACES.get(path.suffix.lower())
    content = path.read_bytes() if place is not None else b""
    if place is not None and content.endswith(place.end):
        content += b"\n" if place in (_XML, _PERCENT) and not content.endswith(b"\n") else b""
        path.write_bytes(_signed(content.removesuffix(place.end), place))


def is_signed(path: Path) -> bool:
    """Return whether segcal wrote a file, which has not been changed since."""
    place = _PLACES.get(path.suffix.lower())
    if place is None or not path.is_file():
        return False
    content = path.read_bytes()
    length = len(place.encoded(f"{_WORDS} {'0' * 64}")) + len(place.end)
    return len(content) > length and content == _signed(content[:-length], place)


def can_be_signed(path: Path) -> bool:
    """Return whether the format of a file has a place for a signature."""
    return path.suffix.lower() in _PLACES


def _signed(start: bytes, place: _Place) -> bytes:
    digest = hashlib.sha256(start + place.end).hexdigest()
    return start + place.encoded(f"{_WORDS} {digest}") + place.end
