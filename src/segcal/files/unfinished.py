"""Output that is kept while it is incomplete, to be continued or merged by a later process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from segcal.files.guards import MARKER, kind_of, refuse_foreign
from segcal.files.json_files import read_json, write_json
from segcal.files.locking import exclusive, staged
from segcal.files.publishing import remove_folder, temporary_name, umask
from segcal.types import InputError


def unfinished_name(path: str | Path) -> Path:
    """Return the name of the folder in which the output `path` is kept until it is complete.

    >>> unfinished_name("out/probs/").name
    'probs.unfinished'
    """
    target = Path(path).resolve()
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
    target = Path(path).resolve()
    with exclusive(target, "folder", shared=shared):
        _make_marked(target, content, replace)
        staged.add(target)  # files inside are renamed when they are whole, and neither locked nor synchronised
        try:
            yield target
        finally:
            staged.discard(target)
            if not shared and [path.name for path in _entries(target)] == [MARKER]:
                discard_unfinished(target)


def discard_unfinished(folder: Path) -> None:
    """Delete an unfinished folder, if it is one.

    It gets a temporary name first, so that a process that is killed meanwhile leaves a whole folder or none.
    """
    if kind_of(folder) == "unfinished":
        aside = temporary_name(folder)
        folder.rename(aside)
        remove_folder(aside)


def remove_leftovers(folder: Path) -> None:
    """Delete what processes that were killed left of files inside a folder."""
    for path in [*folder.rglob(".*.partial-*"), *folder.rglob(".*.old-*")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _make_marked(target: Path, content: Mapping[str, Any], replace: bool) -> None:
    """Make a folder with its marker, or check that of a folder that exists."""
    refuse_foreign(target, "unfinished")
    if replace and _entries(target) and not _has_marker(target, content):
        _refuse_other_command(target, content)
        discard_unfinished(target)
    if not _entries(target):
        _make_folder(target, content)
    if not _has_marker(target, content):
        raise InputError(
            f"'{target}' holds parts of another run: data, calibrators or options differ, or this is another version "
            "of segcal; choose another folder, or delete it"
        )


def _refuse_other_command(target: Path, content: Mapping[str, Any]) -> None:
    """Raise if unfinished work is that of another command, which can still be completed.

    Work of the same command is replaced: its data, calibrators or options have changed.
    """
    marker = read_json(target / MARKER)
    found = marker.get("unfinished") if isinstance(marker, dict) else None
    command = found.get("command") if isinstance(found, dict) else None
    if command is not None and command != content["unfinished"].get("command"):
        raise InputError(
            f"'{target}' holds unfinished output of `segcal {command}`; run that command again to complete it, delete "
            "the folder, or choose another output"
        )


def _make_folder(target: Path, content: Mapping[str, Any]) -> None:
    """Make a folder that has its marker as soon as it exists."""
    staging = temporary_name(target)
    try:
        staging.mkdir(0o700)
        write_json(staging / MARKER, content)
        staging.chmod(0o777 & ~umask())
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
