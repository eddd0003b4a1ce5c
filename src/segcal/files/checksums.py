"""Checksums of files, each computed once as long as the file does not change."""

from __future__ import annotations

import hashlib
from pathlib import Path

_known: dict[tuple[int, int, int, int], str] = {}
"""Checksums by what changes with the content of a file; a second name of a file (a hard link) has the same."""


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file; that of a link, a device or a pipe is empty, as no file of segcal is one."""
    if path.is_symlink() or not path.is_file():
        return ""
    key = _key(path)
    if key not in _known:
        with path.open("rb") as file:
            _known[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _known[key]


def trust_checksum(path: Path, digest: str) -> None:
    """Take over the checksum of a file that another process of the same run has just written."""
    _known[_key(path)] = digest


def _key(path: Path) -> tuple[int, int, int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
