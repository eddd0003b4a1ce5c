"""Schemas of JSON and TOML: what each value in a file must be, and the first one that is something else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

_LARGEST = 1 << 63


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
WHOLE = Kind("a whole number", lambda value: _is_number(value) and isinstance(value, int) and abs(value) < _LARGEST)
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
    if isinstance(value, int) and abs(value) >= _LARGEST:
        return "a number that is too large"
    return repr(value if not isinstance(value, str) else value[:50])
