"""The one reader of JSON and TOML: regular files only, of limited size and depth, without NaN or infinity.

Pages of memory-mapped files count as memory of the process until `release_pages`.
"""

from __future__ import annotations

import json
import math
import mmap
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

from segcal.types import InputError

_LARGEST = 1 << 26
"""Size in bytes of the largest JSON or TOML file that is read."""

_DEEPEST = 100
"""Number of lists and tables inside one another."""

_DOTTED = re.compile(
    rf"""(?:^|[\[{{,])[ \t]*+(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{_DEEPEST}}}""", re.MULTILINE
)
"""A key of TOML that names more levels, for each of which Python's parser takes memory for all levels above it."""

_LARGE = 1 << 26
"""Size in bytes above which it is worthwhile to release the pages of a mapped file."""


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise if it is missing or broken, or holds a number that is not finite."""
    try:
        return _shallow(json.loads(read_text(path), parse_constant=_finite, parse_float=_finite))
    except FileNotFoundError as error:
        raise InputError(f"'{path}' is missing; is '{path.parent}' the right folder?") from error
    except (ValueError, OSError, RecursionError) as error:
        raise _unreadable(path, "JSON", error) from error


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; raise if it is broken."""
    try:
        text = read_text(path)
        if _DOTTED.search(text):
            raise ValueError(f"it has more than {_DEEPEST} levels")
        content: dict[str, Any] = _shallow(tomllib.loads(text))
    except (ValueError, OSError, RecursionError) as error:
        raise _unreadable(path, "TOML", error) from error
    return content


def read_text(path: Path) -> str:
    """Return the content of a text file in UTF-8; raise if it is larger than any that segcal writes."""
    refuse_special(path)
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise InputError(f"'{path}' must have at most {_LARGEST >> 20} MiB, got more; is it the right file?")
    return content.decode("utf-8")


def refuse_special(path: Path) -> None:
    """Raise if a path leads to a device, a pipe or a socket, which would be read without end or never answer."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(f"'{path}' must be a regular file, got a device, pipe or socket; give a file on a disk")


def write_json(path: Path, content: Any) -> None:
    """Write `content` as readable JSON, in which there is no NaN and no infinity."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # names of files that are not UTF-8 have surrogates, which JSON writes as escapes
    path.write_bytes(text.encode("utf-8", errors="backslashreplace"))


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


def _finite(text: str) -> float:
    """Return a number of a JSON file, which Python would read as infinity if it is too large."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def _shallow(content: Any) -> Any:
    """Return the content; raise if its lists and tables lie too deep inside one another."""
    level, depth = [content], 0
    while level := [inner for value in level for inner in _inside(value)]:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError(f"it has more than {_DEEPEST} levels")
    return content


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _unreadable(path: Path, language: str, error: Exception) -> InputError:
    if isinstance(error, InputError):
        return error
    reason = f"it has more than {_DEEPEST} levels" if isinstance(error, RecursionError) else error
    return InputError(f"'{path}' is not readable {language} ({reason}); restore it or write it again")
