"""Reports of the fits: how a method chose among others, and what raises and lowers its temperature."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from segcal.calibrators.report import with_class_names
from segcal.evaluation.results import Results
from segcal.files.reading import NUMBER, PLAIN, TEXT, list_of, optional, problem, record, table_of
from segcal.report.view import View, short

_LARGEST = 700.0
"""Largest logarithm of a factor that is shown."""

_CHOICE = record({"chosen": TEXT, "why": TEXT, "scores": table_of(table_of(PLAIN))})
"""Details of a fit that chose among several methods."""

_NUMBERS = optional(list_of(NUMBER))
_INTERVALS = optional(list_of(list_of(optional(NUMBER), 2)))
_INFLUENCES = record(
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


def choices(view: View) -> list[dict[str, Any]] | None:
    """Return the choice of each method that chose among others, its reason and the scores of each candidate."""
    found = []
    for name, details in _details(view.results).items():
        if problem(details, _CHOICE) is None:
            rows = [
                {"name": candidate, **{key: short(x) if isinstance(x, float) else x for key, x in score.items()}}
                for candidate, score in details["scores"].items()
            ]
            found.append({"method": name, "chosen": details["chosen"], "why": details["why"], "rows": rows})
    return found or None


def influences(view: View) -> list[dict[str, Any]] | None:
    """Return factors, intervals and sentences of each method whose temperature follows features or classes.

    A coefficient w of a standardised feature multiplies the temperature by exp(w) for each standard deviation.
    """
    found, class_names = [], view.class_names
    for name, details in _details(view.results).items():
        own = details.get("chosen_details", details)
        if problem(own, _INFLUENCES) is None and ("coefficients" in own or "class_offsets" in own):
            features = _factors(own.get("features"), own.get("coefficients"), own.get("coefficient_intervals"))
            shares = own.get("class_shares") or ()
            unseen = {label for label, share in zip(class_names, shares, strict=False) if not share}
            offsets = _factors(class_names, own.get("class_offsets"), own.get("class_offset_intervals"))
            classes = [row for row in offsets if row["name"] not in unseen]
            words = [with_class_names(str(sentence), class_names) for sentence in own.get("words") or ()]
            if features or classes or words:
                found.append({"method": name, "features": features, "classes": classes, "words": words})
    return found or None


def _details(results: Results) -> dict[str, Mapping[str, Any]]:
    """Return the details that each method's fit reported, where it has a report."""
    fits = results.settings.get("fits") or {}
    return {name: fits[name]["details"] for name in results.methods if name in fits}


def _factors(
    names: Sequence[str] | None, logarithms: Sequence[float] | None, intervals: Sequence[Sequence[float]] | None
) -> list[dict[str, Any]]:
    """Return factors on the temperature, the largest first; none where nothing was learned, which leaves all at 1."""
    names, logarithms = names or (), logarithms or ()
    pairs: Sequence[Sequence[float | None]] = intervals or [(None, None)] * len(names)
    if not any(logarithms) or not len(names) == len(logarithms) == len(pairs):
        return []
    rows = [
        {"name": str(name), "value": _exp(value), "low": _exp(low), "high": _exp(high)}
        for name, value, (low, high) in zip(names, logarithms, pairs, strict=True)
    ]
    return sorted((row for row in rows if row["value"] is not None), key=lambda row: -(row["value"] or 0))


def _exp(value: float | None) -> float | None:
    return None if value is None or not abs(value) < _LARGEST else short(math.exp(value))
