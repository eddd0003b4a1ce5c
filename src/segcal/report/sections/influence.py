"""What raises and lowers the temperature of methods that follow features or the predicted class."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from segcal.evaluation.results import Results
from segcal.report.sections.fits import fit_details
from segcal.report.view import View


def content(view: View) -> list[dict[str, Any]] | None:
    """The factors of all methods; None where none has any."""
    return influences(view.results, view.class_names) or None


def influences(results: Results, class_names: Sequence[str]) -> list[dict[str, Any]]:
    """For each method whose temperature follows features or classes: the factors, their intervals, and sentences.

    A coefficient w of a standardised feature multiplies the temperature by exp(w) for each standard deviation.
    """
    found = []
    for name, details in fit_details(results).items():
        own = details.get("chosen_details", details)
        if "coefficients" in own or "class_offsets" in own:
            features = _factors(own.get("features"), own.get("coefficients"), own.get("coefficient_intervals"))
            shares = own.get("class_shares") or ()
            unseen = {label for label, share in zip(class_names, shares, strict=False) if not share}
            offsets = _factors(class_names, own.get("class_offsets"), own.get("class_offset_intervals"))
            classes = [row for row in offsets if row["name"] not in unseen]
            words = [_sentence(str(words), class_names) for words in own.get("words") or ()]
            if features or classes or words:
                found.append({"method": name, "features": features, "classes": classes, "words": words})
    return found


def _factors(
    names: Sequence[str] | None, logarithms: Sequence[float] | None, intervals: Sequence[Sequence[float]] | None
) -> list[dict[str, Any]]:
    """Factors on the temperature, the largest first; none where nothing was learned, which leaves all at 1."""
    if not names or not logarithms or not any(logarithms):
        return []
    pairs: Sequence[Sequence[float | None]] = intervals or [(None, None)] * len(names)
    rows = [
        {"name": str(name), "value": _exp(value), "low": _exp(low), "high": _exp(high)}
        for name, value, (low, high) in zip(names, logarithms, pairs, strict=True)
    ]
    return sorted((row for row in rows if row["value"] is not None), key=lambda row: -(row["value"] or 0))


def _sentence(words: str, class_names: Sequence[str]) -> str:
    """The words as a sentence; a fit knows classes by their numbers, the page by their names."""
    named = re.sub(r"\bclass (\d+)\b", lambda found: _name(found, class_names), words.removesuffix("."))
    return f"{named[:1].upper()}{named[1:]}."


def _name(found: re.Match[str], class_names: Sequence[str]) -> str:
    number = int(found[1])
    return class_names[number] if number < len(class_names) else found[0]


def _exp(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{math.exp(value):.5g}")
