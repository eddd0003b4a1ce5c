"""Schema of the settings that are saved with results: which there are, and what each must be."""

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


def optional(kind: Kind) -> Kind:
    """Return the kind that may also be null."""
    return Kind(
        f"{kind.words} or null",
        lambda value: value is None or kind.accepts(value),
        lambda value: iter(()) if value is None else kind.inside(value),
    )


def list_of(kind: Kind, length: int | None = None) -> Kind:
    """Return the kind of a list whose entries are all of one kind."""
    return Kind(
        "a list" if length is None else f"a list of {length} entries",
        lambda value: isinstance(value, list) and length in (None, len(value)),
        lambda value: ((f"[{k}]", entry, kind) for k, entry in enumerate(value)),
    )


def table_of(kind: Kind) -> Kind:
    """Return the kind of a table whose values are all of one kind."""
    return Kind(TABLE.words, TABLE.accepts, lambda value: ((f".{key}", entry, kind) for key, entry in value.items()))


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


_FIT = record(
    {
        "cases": WHOLE,
        "pixels": WHOLE,
        "nll_before": NUMBER,
        "nll_after": NUMBER,
        "steps": WHOLE,
        "seconds": NUMBER,
        "converged": FLAG,
        "warnings": list_of(TEXT),
        "details": TABLE,
    },
    {"learned": WHOLE, "preserves_labels": FLAG},
)
_BACKGROUND = record({"class": WHOLE, "name": TEXT, "fraction": NUMBER, "scores": table_of(table_of(NUMBER))})

SETTINGS = record(
    {
        "methods": list_of(TEXT),
        "warnings": list_of(TEXT),
        "num_classes": WHOLE,
    },
    {
        "channels": list_of(TEXT),
        "regions": list_of(TEXT),
        "activation": TEXT,
        "ignore_index": list_of(WHOLE),
        "background": optional(WHOLE),
        "bins": WHOLE,
        "form": TEXT,
        "ace_edges": TEXT,
        "boundary_width": WHOLE,
        "boundary_ball": FLAG,
        "patch_size": optional(WHOLE),
        "patches": WHOLE,
        "patch_margin": WHOLE,
        "patch_sizes": list_of(WHOLE),
        "patch_rule": TEXT,
        "seed": WHOLE,
        "repetitions": WHOLE,
        "interval": TEXT,
        "floor": FLAG,
        "surfaces": FLAG,
        "surface_tolerance": NUMBER,
        "limits": FLAG,
        "class_names": optional(list_of(TEXT)),
        "segcal": TEXT,
        "date": TEXT,
        "versions": table_of(TEXT),
        "baseline": TEXT,
        "fits": table_of(_FIT),
        "unnamed_background": _BACKGROUND,
        "surface_background": TEXT,
        "surface_unit": TEXT,
        "presentation": record({}, {"reference": optional(TEXT), "test": TEXT, "average": TEXT}),
        "dataset": TEXT,
    },
)
"""Settings of saved results."""

_NUMBERS = optional(list_of(NUMBER))
_INTERVALS = optional(list_of(list_of(optional(NUMBER), 2)))

CHOICE = record({"chosen": TEXT, "why": TEXT, "scores": table_of(table_of(PLAIN))})
"""Details of a fit that chose among several methods."""

INFLUENCES = record(
    {},
    {
        "features": optional(list_of(TEXT)),
        "coefficients": _NUMBERS,
        "coefficient_intervals": _INTERVALS,
        "class_offsets": _NUMBERS,
        "class_offset_intervals": _INTERVALS,
        "class_shares": _NUMBERS,
        "words": optional(list_of(TEXT)),
    },
)
"""Details of a fit whose temperature follows features or classes."""
