"""Files and folders that appear whole or not at all, durably, written by one process at a time.

What is written has a temporary name, `.NAME.partial-xxxxxxxx`, until it is complete and on disk. What it replaces is
renamed to `.NAME.old-xxxxxxxx` first and deleted last, so that a process killed at any moment leaves the old output or
the new one. The next process that writes the same output removes, or puts back, whatever such a process left behind.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from segcal.files.guards import list_files, refuse_foreign, refuse_foreign_file, refuse_url, resolved, sign, stranger_in
from segcal.files.reading import refuse_special
from segcal.types import InputError

_LONGEST = 255
"""Bytes of the longest name of a file."""

_TEMPORARY = re.compile(r"\..+\.((partial|old)-[0-9a-f]{8}(\..*)?|segcal-lock)")
"""Names under which nothing lasts."""

_staged: set[Path] = set()
"""Folders that this process is writing; what is written inside them is locked, synchronised and published with them."""


@contextmanager
def staged_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` if the block succeeds and vanishes if it does not.

    The marker that the block writes is completed with a list of all files and their checksums. A folder already at
    `path` is replaced when it is empty or as segcal wrote it, and refused otherwise. Where `path` is itself such a
    temporary folder, what is written goes into it. Where it is a link, the folder that it names is written.
    """
    refuse_url(path)
    target = resolved(Path(path))
    if target in _staged:
        yield target
        return
    with exclusive(target, "folder"):
        refuse_foreign(target)
        with replacing(target, check=partial(_refuse_added, target)) as staging:
            _staged.add(staging)
            try:
                yield staging
            finally:
                _staged.discard(staging)
            list_files(staging)


@contextmanager
def staged_file(path: str | Path, check: Callable[[Path], None] = lambda old: None) -> Iterator[Path]:
    """Yield a temporary file name that becomes `path` if the block succeeds and vanishes if it does not.

    `check` may refuse what is there just before it is replaced.
    Where `path` is a link, the file that it names is written, and no device, pipe or socket.
    """
    refuse_url(path)
    target = resolved(Path(path))
    if target.is_dir():
        raise InputError(f"'{path}' is a folder, and a file is to be written there; choose another name")
    if target.exists():
        refuse_special(target)
    with (
        exclusive(target, "file"),
        replacing(target, "".join(target.suffixes), is_folder=False, check=check) as staging,
    ):
        yield staging


@contextmanager
def signed_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary file name that becomes `path`, signed; refuse to replace a file without a signature."""
    refuse_foreign_file(Path(path))
    with staged_file(path, refuse_foreign_file) as staging:  # one may have been put there meanwhile
        yield staging
        sign(staging)


@contextmanager
def staged_store(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes the array store `path`, in place of one that is there, as a file would."""
    target = Path(os.path.abspath(path))  # noqa: PTH100
    with exclusive(target, "folder"), replacing(target, target.suffix) as staging:
        yield staging


@contextmanager
def exclusive(target: Path, what: str) -> Iterator[None]:
    """Hold the lock of an output, make its parent folder, and clean up after a process that was killed.

    The lock is a file beside the output, which the system frees if the process is killed. There is none in a folder
    that this process is writing.
    """
    if _is_staged(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
        return
    if _TEMPORARY.fullmatch(target.name):
        raise InputError(f"'{target}' has a name of unfinished output, which the next run removes; choose another name")
    lock = FileLock(_hidden(target, "segcal-lock"), timeout=0, thread_local=False)
    try:
        try:
            _take(lock, target, what)
            yield
        except BaseException:
            if lock.is_locked:
                _collect_leftovers(target)
            raise
        finally:
            _release(lock)
    except BaseException:
        _release(lock)  # a signal may have come while it was released
        raise


def _take(lock: FileLock, target: Path, what: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise InputError(
            f"'{target}' is being written by another process; wait for it, or choose another output"
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot write to '{target}': {reason}; choose another output {what}") from error
    _collect_leftovers(target)


def _release(lock: FileLock) -> None:
    """Free a lock and remove its file while it is held, so that no other process can hold what is removed."""
    if lock.is_locked:
        with suppress(OSError):
            Path(lock.lock_file).unlink()
        lock.release()


def remove_folder(path: Path) -> None:
    """Remove a folder, or a file in its place.

    It gets a temporary name first, so that a process that is killed leaves all of it or nothing.
    """
    aside = temporary_name(path)
    with suppress(FileNotFoundError):
        path.rename(aside)
    _remove(aside)


def temporary_name(target: Path, suffix: str = "") -> Path:
    """Return a name for what becomes `target`; known before it exists, so that a signal never leaves it behind."""
    return _hidden(target, f"partial-{secrets.token_hex(4)}{suffix}")


def _hidden(target: Path, ending: str) -> Path:
    """Return a hidden name beside an output: with its own name or, where that would be too long, a hash of it."""
    own = target.with_name(f".{target.name}.{ending}")
    return own if len(os.fsencode(own.name)) <= _LONGEST else target.with_name(f".{_hash(target)}.{ending}")


def _hash(target: Path) -> str:
    return hashlib.sha256(os.fsencode(target.name)).hexdigest()[:32]


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk, where the file system can do that."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def replacing(
    target: Path, suffix: str = "", *, is_folder: bool = True, check: Callable[[Path], None] = lambda old: None
) -> Iterator[Path]:
    """Yield a temporary folder or file that takes the place of `target` if the block succeeds.

    What is replaced is checked: a folder where it was set aside, out of reach of whoever knows its name.
    """
    staging = temporary_name(target, suffix)
    try:
        staging.mkdir() if is_folder else staging.touch(exist_ok=False)
        yield staging
        _publish(staging, target, check)
    except BaseException:
        _remove(staging)
        raise


def _refuse_added(target: Path, old: Path) -> None:
    """Raise if somebody has put something into an old output, or changed it, while the new one was written."""
    is_folder = old.is_dir() and not old.is_symlink()
    if stranger := stranger_in(old) if is_folder else target.name:
        raise InputError(
            f"'{stranger}' was put at '{target}', or changed there, while the output was written; move it elsewhere, "
            "and run the command again"
        )


def _publish(staging: Path, target: Path, check: Callable[[Path], None]) -> None:
    """Publish a file in one step, or a folder: the old one aside, the new one into its place, then the old one away."""
    durable = not _is_staged(target)
    if durable:
        for path in (*staging.rglob("*"), staging):
            sync(path)
    aside = _hidden(target, f"old-{secrets.token_hex(4)}")
    try:
        if staging.is_dir() and target.exists():
            target.rename(aside)
            check(aside)
        elif not staging.is_dir():
            check(target)
        staging.replace(target)
    except BaseException:
        if aside.exists() and not target.exists():
            aside.rename(target)
        raise
    if durable:
        sync(target.parent)
    _remove(aside)


def _remove(path: Path) -> None:
    """Remove a folder or file with a temporary name, even if a signal asks the process to end meanwhile."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
        return
    try:
        shutil.rmtree(path, ignore_errors=True)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def _is_staged(target: Path) -> bool:
    """Return whether `target` lies in a folder that this process is writing."""
    return any(target.is_relative_to(folder) for folder in tuple(_staged))  # which threads may change


def _collect_leftovers(target: Path) -> None:
    """Remove what a killed process left of this output; put back the old one if the new one did not follow."""
    pattern = re.compile(rf"\.({re.escape(target.name)}|{_hash(target)})\.(partial|old)-[0-9a-f]{{8}}(\..*)?")
    for path, kind in [(path, found[2]) for path in target.parent.iterdir() if (found := pattern.fullmatch(path.name))]:
        if kind == "old" and not target.exists():
            path.rename(target)
        else:
            _remove(path)
