"""Output that appears whole or not at all, and that never replaces anything but segcal's own earlier output.

What is written has a temporary name, `.NAME.partial-xxxxxxxx`, until it is complete and on disk. What it replaces is
renamed to `.NAME.old-xxxxxxxx` first and deleted last, so that a process killed at any moment leaves the old output or
the new one. The next process that writes the same output removes, or puts back, whatever such a process left behind.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from segcal.types import InputError

try:
    import fcntl
except ImportError:  # Windows: outputs are not locked there
    fcntl = None  # type: ignore[assignment]

MARKER = "segcal.json"
"""Every folder that segcal writes holds this file; only such a folder is ever replaced."""

_KINDS = {
    "method": "a calibrator",
    "results": "results",
    "probabilities": "calibrated probabilities",
    "data": "a data folder",
    "maps": "maps of a diagnosis",
    "fusion": "fused labels",
    "portraits": "portraits of cases",
    "diagnosis": "a diagnosis",
    "decisions": "decisions",
    "checkpoints": "checkpoints of a training run",
    "unfinished": "parts of an unfinished run",
}
"""Description of each kind of folder, by the key of its marker."""

_LARGE = 1 << 26
"""Size in bytes above which it is worthwhile to release the pages of a mapped file."""

_LONGEST_TEXT = 1 << 28
"""Largest JSON or TOML file that is read, in bytes."""

_SIGNS = {
    ".html": b"<title>Calibration report</title>",
    ".htm": b"<title>Calibration report</title>",
    ".json": b'"settings"',
    ".csv": b"case,method,region,metric,value,pixels",
    ".parquet": b"metric",
    ".tex": b"\\begin{tabular}",
    ".md": b"|",
    ".png": b"atplotlib",
    ".pdf": b"atplotlib",
    ".svg": b"atplotlib",
    ".onnx": b"pytorch",
}
"""Bytes near the beginning or end of every file that segcal writes, by extension."""

_ENDS = 1 << 14

_staged: set[Path] = set()
"""Folders that this process is writing; what is written inside them is published, and locked, with them."""


@contextmanager
def staged_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` if the block succeeds and vanishes if it does not.

    A folder already at `path` is replaced when it is empty or was written by segcal, and refused otherwise. Where
    `path` is itself such a temporary folder, what is written goes into it and is published with it.
    """
    target = Path(os.path.abspath(path))  # noqa: PTH100  (a trailing slash must not make an empty name)
    if target in _staged:
        yield target
        return
    refuse_foreign(target)
    with _exclusive(target, "folder"):
        refuse_foreign(target)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
        _staged.add(staging)
        try:
            yield staging
            staging.chmod(0o777 & ~_umask())
            _replace_folder(staging, target)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        finally:
            _staged.discard(staging)


def unfinished_name(path: str | Path) -> Path:
    """Return the name of the folder in which the output `path` is kept until it is complete.

    >>> unfinished_name("out/probs/").name
    'probs.unfinished'
    """
    target = Path(os.path.abspath(path))  # noqa: PTH100
    return target.with_name(f"{target.name}.unfinished")


@contextmanager
def unfinished_folder(path: str | Path, content: Mapping[str, Any], *, shared: bool, replace: bool) -> Iterator[Path]:
    """Yield a folder that stays when the process ends, to be continued or merged later.

    Its marker holds `content`, of the kind "unfinished". A folder that is there already is continued if its marker
    holds the same identity. Any other is refused, unless `replace` says that unfinished work may be replaced.

    Args:
        path: The folder.
        content: Of the marker; its identity is the same for all processes that share the folder.
        shared: Whether other processes may work in the folder at the same time.
        replace: Whether unfinished work of another run is deleted.
    """
    target = Path(os.path.abspath(path))  # noqa: PTH100
    with _exclusive(target, "folder", shared=shared):
        _make_marked(target, content, replace)
        _staged.add(target)  # files inside are renamed when they are whole, and neither locked nor synchronised
        try:
            yield target
        finally:
            _staged.discard(target)
            if not shared and [path.name for path in _entries(target)] == [MARKER]:
                discard_unfinished(target)


def discard_unfinished(folder: Path) -> None:
    """Delete an unfinished folder, if it is one.

    It gets a temporary name first, so that a process that is killed meanwhile leaves a whole folder or none.
    """
    if _kind_of(folder) == "unfinished":
        aside = folder.with_name(f".{folder.name}.partial-{secrets.token_hex(4)}")
        folder.rename(aside)
        _remove_folder(aside)


def remove_leftovers(folder: Path) -> None:
    """Delete what processes that were killed left of files inside a folder."""
    for path in [*folder.rglob(".*.partial-*"), *folder.rglob(".*.old-*")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _make_marked(target: Path, content: Mapping[str, Any], replace: bool) -> None:
    """Make a folder with its marker, or check that of a folder that exists."""
    refuse_foreign(target, "unfinished")
    if replace and _entries(target) and not _has_marker(target, content):
        discard_unfinished(target)
    if not _entries(target):
        _make_folder(target, content)
    if not _has_marker(target, content):
        raise InputError(
            f"'{target}' holds parts of another run: data, calibrators or options differ, or this is another version "
            "of segcal; choose another folder, or delete it"
        )


def _make_folder(target: Path, content: Mapping[str, Any]) -> None:
    """Make a folder that has its marker as soon as it exists."""
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    try:
        write_json(staging / MARKER, content)
        staging.chmod(0o777 & ~_umask())
        with suppress(OSError):
            staging.rename(target)
    finally:  # it is still there if writing failed, or if another process that shares the folder was faster
        if staging.exists():
            shutil.rmtree(staging, ignore_errors=True)


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _has_marker(folder: Path, content: Mapping[str, Any]) -> bool:
    marker = read_json(folder / MARKER)
    found = marker.get("unfinished") if isinstance(marker, dict) else None
    return isinstance(found, dict) and found.get("identity") == content["unfinished"]["identity"]


@contextmanager
def staged_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary file name that becomes `path` if the block succeeds and vanishes if it does not."""
    target = Path(os.path.abspath(path))  # noqa: PTH100
    if target.is_dir():
        raise InputError(f"'{path}' is a folder, and a file is to be written there; choose another name")
    with _exclusive(target, "file"):
        handle, name = tempfile.mkstemp(
            prefix=f".{target.name}.partial-", suffix="".join(target.suffixes), dir=target.parent
        )
        os.close(handle)
        staging = Path(name)
        try:
            yield staging
            staging.chmod(0o666 & ~_umask())
            if not _is_staged(target):
                _sync(staging)
            staging.replace(target)
            if not _is_staged(target):
                _sync(target.parent)
        except BaseException:
            staging.unlink(missing_ok=True)
            raise


@contextmanager
def staged_store(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes the array store `path`, in place of one that is there, as a file would."""
    target = Path(os.path.abspath(path))  # noqa: PTH100
    with _exclusive(target, "folder"):
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", suffix=target.suffix, dir=target.parent))
        try:
            yield staging
            staging.chmod(0o777 & ~_umask())
            _replace_folder(staging, target)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise


def refuse_foreign(target: Path, kind: str | None = None) -> None:
    """Raise unless `target` is free, an empty folder, or a folder that segcal wrote.

    With `kind`, a key of the marker ("method", "results", ...), a folder of another kind is refused as well.
    """
    if target.is_dir():
        if any(target.iterdir()) and not (target / MARKER).exists():
            raise InputError(f"'{target}' holds files that segcal did not write; choose another output folder")
        found = _kind_of(target)
        if kind is not None and found not in (None, kind):
            raise InputError(
                f"'{target}' holds {_KINDS[found]}, which {_KINDS[kind]} must not replace; choose another output folder"
            )
    elif target.exists():
        raise InputError(f"'{target}' is a file, and a folder is to be written there; choose another name")


def refuse_unfinished(folder: Path) -> None:
    """Raise if a folder is the unfinished output of a command, in which cases are missing."""
    if _kind_of(folder) == "unfinished":
        raise InputError(
            f"'{folder}' holds unfinished output; run the command again, or merge its parts, to complete it"
        )


def refuse_overwriting(out: Path | None, *inputs: Path | None) -> None:
    """Raise if `out` is an input, holds one, or lies inside one: what is made from inputs must not change them."""
    for path in inputs:
        if out is None or path is None:
            continue
        if path.resolve().is_relative_to(out.resolve()) or out.resolve().is_relative_to(path.resolve()):
            raise InputError(f"'{out}' cannot be written to, as '{path}' is read from; choose another output")


def check_output_file(out: Path | None, extensions: Sequence[str], *inputs: Path | None) -> None:
    """Raise unless a file may be written at `out`: not a folder, not among the inputs, and of a known extension.

    A file that exists is replaced only if it looks like one that segcal writes under this extension, and never inside
    a folder that segcal wrote.
    """
    if out is None:
        return
    refuse_overwriting(out, *inputs)
    if out.is_dir():
        raise InputError(f"'{out}' is a folder, and a file is to be written there; choose another name")
    if extensions and out.suffix.lower() not in extensions:
        known = " or ".join(extensions)
        raise InputError(f"'{out}' must be a name that ends in {known}, got '{out.suffix}'; choose another name")
    if out.exists() and (out.name == MARKER or (out.parent / MARKER).exists()):
        raise InputError(f"'{out}' is part of a folder that segcal wrote; choose another name")
    if out.exists() and not _looks_written(out):
        raise InputError(f"'{out}' exists, and segcal did not write it; choose another name, or remove it")


def write_json(path: Path, content: Any) -> None:
    """Write `content` as readable JSON, in which there is no NaN and no infinity."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # names of files that are not UTF-8 have surrogates, which JSON writes as escapes
    path.write_bytes(text.encode("utf-8", errors="backslashreplace"))


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise if it is missing or broken, or holds a number that is not finite."""
    try:
        return json.loads(read_text(path), parse_constant=_finite, parse_float=_finite)
    except FileNotFoundError as error:
        raise InputError(f"'{path}' is missing; is '{path.parent}' the right folder?") from error
    except (ValueError, OSError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"'{path}' is not readable JSON ({error}); restore it or write it again") from error


def _finite(text: str) -> float:
    """Return a number of a JSON file, which Python would read as infinity if it is too large."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def read_text(path: Path) -> str:
    """Return the content of a text file in UTF-8; raise if it is larger than any that segcal writes."""
    if (size := path.stat().st_size) > _LONGEST_TEXT:
        raise InputError(
            f"'{path}' must have at most {_LONGEST_TEXT >> 20} MiB, got {size >> 20} MiB; is it the right file?"
        )
    return path.read_text(encoding="utf-8")


def release_pages(array: object, *, least: int = _LARGE, unchanged: bool = False) -> None:
    """Release the memory of a large memory-mapped array; it is read from disk again if needed.

    The pages of a mapped file count as memory of the process, so that reading a volume once would keep all of it.

    Args:
        array: Any array; arrays that are not mapped are left alone.
        least: Size in bytes above which an array counts as large.
        unchanged: Whether nothing was written to an array that is copied on write; changes would be lost.
    """
    mapped = getattr(array, "_mmap", None)
    unchanged = unchanged or getattr(array, "mode", None) == "r"
    if isinstance(mapped, mmap.mmap) and unchanged and len(mapped) > least and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


@contextmanager
def _exclusive(target: Path, what: str, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of an output, make its parent folder, and clean up after a process that was killed."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = None if _is_staged(target) else _lock(target, shared)
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


def _replace_folder(staging: Path, target: Path) -> None:
    """Publish a folder: the old one aside, the new one into its place, then the old one away."""
    durable = not _is_staged(target)
    if durable:
        for path in staging.rglob("*"):
            _sync(path)
        _sync(staging)
    aside = None
    if target.exists():
        aside = target.with_name(f".{target.name}.old-{secrets.token_hex(4)}")
        target.rename(aside)
    try:
        staging.rename(target)
    except BaseException:
        if aside is not None:
            aside.rename(target)
        raise
    if durable:
        _sync(target.parent)
    if aside is not None:
        _remove_folder(aside)


def _remove_folder(path: Path) -> None:
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


def _is_staged(target: Path) -> bool:
    return any(target.is_relative_to(folder) for folder in _staged)


def _kind_of(folder: Path) -> str | None:
    """Return what kind of folder segcal wrote here, or None if its marker does not say."""
    try:
        content = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return next((key for key in _KINDS if key in content), None) if isinstance(content, dict) else None


def _looks_written(path: Path) -> bool:
    """Return whether a file is empty or has the sign of a file that segcal wrote."""
    sign, size = _SIGNS.get(path.suffix.lower()), path.stat().st_size
    if sign is None or not size or not path.is_file():
        return not size
    with path.open("rb") as file:
        start = file.read(_ENDS)
        file.seek(max(0, size - _ENDS))
        return sign in start or sign in file.read(_ENDS)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
