"""Files and folders that appear whole or not at all.

What is written has a temporary name, `.NAME.partial-xxxxxxxx`, until it is complete and on disk. What it replaces is
renamed to `.NAME.old-xxxxxxxx` first and deleted last, so that a process killed at any moment leaves the old output or
the new one. The next process that writes the same output removes, or puts back, whatever such a process left behind.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from segcal.files.guards import refuse_foreign, refuse_url
from segcal.files.locking import exclusive, is_staged, staged
from segcal.types import InputError


@contextmanager
def staged_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` if the block succeeds and vanishes if it does not.

    A folder already at `path` is replaced when it is empty or was written by segcal, and refused otherwise. Where
    `path` is itself such a temporary folder, what is written goes into it and is published with it. Where it is a link,
    the folder that it names is written.
    """
    refuse_url(path)
    target = Path(path).resolve()  # a link stays, and the folder that it names is written
    if target in staged:
        yield target
        return
    refuse_foreign(target)
    with exclusive(target, "folder"):
        refuse_foreign(target)
        with _replacing(target) as staging:
            try:
                staged.add(staging)
                yield staging
            finally:
                staged.discard(staging)


@contextmanager
def staged_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary file name that becomes `path` if the block succeeds and vanishes if it does not."""
    refuse_url(path)
    target = Path(os.path.abspath(path))  # noqa: PTH100
    if target.is_dir():
        raise InputError(f"'{path}' is a folder, and a file is to be written there; choose another name")
    with exclusive(target, "file"):
        staging = temporary_name(target, "".join(target.suffixes))
        try:
            staging.touch(0o600, exist_ok=False)
            yield staging
            staging.chmod(0o666 & ~umask())
            if not is_staged(target):
                _sync(staging)
            staging.replace(target)
            if not is_staged(target):
                _sync(target.parent)
        except BaseException:
            staging.unlink(missing_ok=True)
            raise


@contextmanager
def staged_store(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes the array store `path`, in place of one that is there, as a file would."""
    target = Path(os.path.abspath(path))  # noqa: PTH100
    with exclusive(target, "folder"), _replacing(target, target.suffix) as staging:
        yield staging


@contextmanager
def _replacing(target: Path, suffix: str = "") -> Iterator[Path]:
    """Yield a temporary folder that takes the place of `target` if the block succeeds."""
    staging = temporary_name(target, suffix)
    try:
        staging.mkdir(0o700)
        yield staging
        staging.chmod(0o777 & ~umask())
        _replace_folder(staging, target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def temporary_name(target: Path, suffix: str = "") -> Path:
    """Return a name for what becomes `target`; known before it exists, so that a signal never leaves it behind."""
    return target.with_name(f".{target.name}.partial-{secrets.token_hex(4)}{suffix}")


def _replace_folder(staging: Path, target: Path) -> None:
    """Publish a folder: the old one aside, the new one into its place, then the old one away."""
    durable = not is_staged(target)
    if durable:
        for path in staging.rglob("*"):
            _sync(path)
        _sync(staging)
    aside = target.with_name(f".{target.name}.old-{secrets.token_hex(4)}")
    try:
        if target.exists():
            target.rename(aside)
        staging.rename(target)
    except BaseException:
        if aside.exists() and not target.exists():
            aside.rename(target)
        raise
    if durable:
        _sync(target.parent)
    remove_folder(aside)


def remove_folder(path: Path) -> None:
    """Remove a folder, also if a signal asks the process to end meanwhile."""
    try:
        shutil.rmtree(path, ignore_errors=True)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def _sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk, where the file system can do that."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def umask() -> int:
    """Return the permissions that new files do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
