"""One writer for each output: locks, and what a process that was killed left beside it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
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
    lock = _Lock(target, shared)
    try:
        try:
            _begin(lock, what)
            yield
        except BaseException:
            lock.clean()
            raise
        finally:
            lock.release()
    except BaseException:
        lock.release()  # a signal may have come while it was taken or released
        raise


def _begin(lock: _Lock, what: str) -> None:
    try:
        lock.target.parent.mkdir(parents=True, exist_ok=True)
        lock.take()
    except OSError as error:
        raise InputError(f"cannot write to '{lock.target}': {error.strerror}; choose another output {what}") from error
    lock.clean()


class _Lock:
    """The lock of an output: a file beside it that exists as long as a process holds it.

    The system frees the lock of a process that is killed. There is none in a folder that this process is writing.
    """

    def __init__(self, target: Path, shared: bool) -> None:
        self.target, self.shared, self.is_held = target, shared, False
        self._path = target.parent / f".{target.name}.lock"
        self._needed = fcntl is not None and not is_staged(target)
        self._file: FileIO | None = None

    def take(self) -> None:
        """Take the lock; raise if another process is writing the output."""
        while self._needed and not self.is_held:
            self._file = FileIO(self._path, "a+")
            try:
                fcntl.flock(self._file, (fcntl.LOCK_SH if self.shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"'{self.target}' is being written by another process; wait for it, or choose another output"
                ) from error
            with suppress(FileNotFoundError):
                self.is_held = os.fstat(self._file.fileno()).st_ino == self._path.stat().st_ino
            if not self.is_held:
                self._file.close()  # the process that held it has removed it in between

    def clean(self) -> None:
        """Remove, or put back, what a process that was killed or interrupted left of the output."""
        if self.is_held and not self.shared:
            _collect_leftovers(self.target)

    def release(self) -> None:
        """Free the lock and remove its file, unless others share it; may be called again if it was interrupted."""
        if not self._needed:
            return
        with suppress(OSError):  # it is gone, or others hold it
            if self._file is None or self._file.closed:
                self._file = FileIO(self._path, "r+")
            with self._file:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._path.unlink()


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
