"""The one reader of JSON and TOML: regular files only, of limited size and depth, without NaN, infinity or keys twice.

A schema (`Kind`) says what each value in such a file must be; `problem` finds the first one that is something else.
"""

from __future__ import annotations

import json
import math
import mmap
import re
import stat
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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

_LARGEST_WHOLE = 1 << 63


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise if it is missing or broken, or has NaN, infinity or a key twice."""
    try:
        text = read_text(path)
        return _shallow(json.loads(text, parse_constant=_finite, parse_float=_finite, object_pairs_hook=_table))
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
    """Return the content of a text file in UTF-8 without a byte order mark; raise if segcal writes none as large."""
    refuse_special(path)
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise InputError(f"'{path}' must have at most {_LARGEST >> 20} MiB, got more; is it the right file?")
    return content.decode("utf-8-sig")


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


def release_pages(array: object, *, least: int = _LARGE) -> None:
    """Release the memory of a large memory-mapped array; it is read from disk again if needed.

    The pages of a mapped file count as memory of the process, so that reading a volume once would keep all of it.

    Args:
        array: Any array; arrays that are not mapped are left alone.
        least: Size in bytes above which an array counts as large.
    """
    mapped = getattr(array, "_mmap", None)
    unchanged = getattr(array, "mode", None) == "r"  # changes of an array that is copied on write would be lost
    if isinstance(mapped, mmap.mmap) and unchanged and len(mapped) > least and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _finite(text: str) -> float:
    """Return a number of a JSON file, which Python would read as infinity if it is too large."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a table of a JSON file, of which Python would keep the last of several values under one key."""
    found = dict(pairs)
    if len(found) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"one table has the key {_short(key)} more than once")
    return found


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


class Kind(NamedTuple):
    """A kind of value in words, the test of a value, and the values inside it with their kinds."""

    words: str
    accepts: Callable[[Any], bool]
    inside: Callable[[Any], Iterator[tuple[str, Any, Kind]]] = lambda value: iter(())


def _is_number(value: Any) -> bool:
    whole = isinstance(value, int | float) and not isinstance(value, bool)
    return whole and abs(value) <= sys.float_info.max


TEXT = Kind("a text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
NUMBER = Kind("a number", _is_number)
WHOLE = Kind(
    "a whole number", lambda value: _is_number(value) and isinstance(value, int) and abs(value) < _LARGEST_WHOLE
)
PLAIN = Kind(
    "a number, a text or null", lambda value: value is None or isinstance(value, str | bool) or _is_number(value)
)
TABLE = Kind("a table", lambda value: isinstance(value, dict))
LIST = Kind("a list", lambda value: isinstance(value, list))


def optional(kind: Kind) -> Kind:
    """Return the kind that may also be null."""
    return Kind(
        f"{kind.words} or null",
        lambda value: value is None or kind.accepts(value),
        lambda value: iter(()) if value is None else kind.inside(value),
    )


def any_of(words: str, *kinds: Kind) -> Kind:
    """Return the kind of a value that is, with all that is inside it, of one of several kinds."""
    return Kind(words, lambda value: any(problem(value, kind) is None for kind in kinds))


def one_of(*texts: str) -> Kind:
    """Return the kind of a text that is one of several."""
    return Kind(" or ".join(f'"{text}"' for text in texts), lambda value: isinstance(value, str) and value in texts)


def list_of(kind: Kind, length: int | None = None) -> Kind:
    """Return the kind of a list whose entries are all of one kind."""
    return Kind(
        LIST.words if length is None else f"a list of {length} entries",
        lambda value: isinstance(value, list) and length in (None, len(value)),
        lambda value: ((f"[{k}]", entry, kind) for k, entry in enumerate(value)),
    )


def table_of(kind: Kind) -> Kind:
    """Return the kind of a table whose values are all of one kind."""
    return Kind(TABLE.words, TABLE.accepts, lambda value: ((f".{key}", entry, kind) for key, entry in value.items()))


def not_empty(kind: Kind) -> Kind:
    """Return the kind of a list or table that has at least one entry."""
    return kind._replace(accepts=lambda value: kind.accepts(value) and bool(value))


def record(needed: Mapping[str, Kind], allowed: Mapping[str, Kind] | None = None) -> Kind:
    """Return the kind of a table with some keys that it must have and some that it may have; others are not read."""
    known = {**needed, **(allowed or {})}
    return Kind(
        f"a table with {', '.join(needed)}" if needed else TABLE.words,
        lambda value: isinstance(value, dict) and needed.keys() <= value.keys(),
        lambda value: ((f".{key}", value[key], kind) for key, kind in known.items() if key in value),
    )


def problem(value: Any, kind: Kind, place: str = "") -> str | None:
    """Return what is wrong with a value or with one inside it, or None.

    Examples:
        >>> problem({"channels": 5}, record({"channels": list_of(TEXT)}))
        "'channels' must be a list, got 5"
    """
    if not kind.accepts(value):
        missing = f"'{place.removeprefix('.')}' " if place else ""
        return f"{missing}must be {kind.words}, got {_short(value)}"
    found = (problem(entry, own, f"{place}{key}") for key, entry, own in kind.inside(value))
    return next((wrong for wrong in found if wrong), None)


def _short(value: Any) -> str:
    """Return a value in a few words, however large it is."""
    if isinstance(value, dict | list):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, int) and abs(value) >= _LARGEST_WHOLE:
        return "a number that is too large"
    return repr(value if not isinstance(value, str) else value[:50])
