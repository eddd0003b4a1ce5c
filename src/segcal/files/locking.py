"""One writer for each output: locks, and what a process that was killed left beside it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from segcal.types import InputError

try:
    import fcntl
except ImportError:  # Windows: outputs are not locked there
    fcntl = None  # type: ignore[assignment]

staged: set[Path] = set()
"""Folders that this process is writing; what is written inside them is published, and locked, with them."""


def is_staged(target: Path) -> bool:
    """Return whether `target` lies in a folder that this process is writing."""
    return any(target.is_relative_to(folder) for folder in staged)


@contextmanager
def exclusive(target: Path, what: str, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of an output, make its parent folder, and clean up after a process that was killed."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = None if is_staged(target) else _lock(target, shared)
    except OSError as error:
        raise InputError(f"cannot write to '{target}': {error.strerror}; choose another output {what}") from error
    try:
        if lock is not None and not shared:
            _collect_leftovers(target)
        yield
    finally:
        _unlock(target, lock)


def _lock_file(target: Path) -> Path:
    return target.parent / f".{target.name}.lock"


def _lock(target: Path, shared: bool) -> int | None:
    """Lock an output; raise if another process is writing it. The system frees the lock of a process that is killed."""
    if fcntl is None:
        return None
    while True:
        handle = os.open(_lock_file(target), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise InputError(
                f"'{target}' is being written by another process; wait for it, or choose another output"
            ) from error
        with suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == _lock_file(target).stat().st_ino:
                return handle
        os.close(handle)  # the process that held it has removed it in between


def _unlock(target: Path, handle: int | None) -> None:
    if handle is not None:
        with suppress(BlockingIOError):  # others that share it keep it
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _lock_file(target).unlink(missing_ok=True)
        os.close(handle)


def _collect_leftovers(target: Path) -> None:
    """Remove what a killed process left of this output; put back the old one if the new one did not follow."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.(partial|old)-[a-z0-9_]{{8}}(\..*)?")
    found = [path for path in target.parent.iterdir() if pattern.fullmatch(path.name)]
    for path in found:
        old = path.name.startswith(f".{target.name}.old-")
        if old and not target.exists():
            path.rename(target)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
