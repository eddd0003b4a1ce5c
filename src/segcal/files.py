"""Output that appears whole or not at all: written under a temporary name, then renamed."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from segcal.types import InputError

MARKER = "segcal.json"
"""Every folder that segcal writes holds this file; only such a folder is ever replaced."""


@contextmanager
def staged_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` if the block succeeds and vanishes if it does not.

    A folder already at `path` is replaced when it is empty or was written by segcal, and refused otherwise.
    """
    target = Path(os.path.abspath(path))  # noqa: PTH100  (a trailing slash must not make an empty name)
    refuse_foreign(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise InputError(f"cannot write to '{path}': {error.strerror}; choose another output folder") from error
    try:
        yield staging
        staging.chmod(0o777 & ~_umask())
        if target.exists():
            shutil.rmtree(target)
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def refuse_foreign(target: Path) -> None:
    """Raise unless `target` is free, an empty folder, or a folder that segcal wrote."""
    if target.is_dir():
        if any(target.iterdir()) and not (target / MARKER).exists():
            raise InputError(f"'{target}' holds files that segcal did not write; choose another output folder")
    elif target.exists():
        raise InputError(f"'{target}' is a file, and a folder is to be written there; choose another name")


def refuse_overwriting(out: Path | None, *inputs: Path | None) -> None:
    """Raise if `out` is, or holds, one of the inputs: folders that segcal wrote are replaced without asking."""
    for path in inputs:
        if out is not None and path is not None and path.resolve().is_relative_to(out.resolve()):
            raise InputError(f"'{out}' cannot be written to, as '{path}' is read from; choose another output folder")


@contextmanager
def staged_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary file name that becomes `path` if the block succeeds and vanishes if it does not."""
    target = Path(os.path.abspath(path))  # noqa: PTH100
    if target.is_dir():
        raise InputError(f"'{path}' is a folder, and a file is to be written there; choose another name")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix="".join(target.suffixes), dir=target.parent)
    except OSError as error:
        raise InputError(f"cannot write to '{path}': {error.strerror}; choose another output file") from error
    os.close(handle)
    staging = Path(name)
    try:
        yield staging
        staging.chmod(0o666 & ~_umask())
        staging.replace(target)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    """Write `content` as readable JSON, in which there is no NaN and no infinity."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read JSON, or say which file is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"'{path}' is missing; is '{path.parent}' the right folder?") from error
    except (ValueError, OSError) as error:
        raise InputError(f"'{path}' is not readable JSON ({error}); restore it or write it anew") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
