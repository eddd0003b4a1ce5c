"""Doubts about an evaluation: calibrators that were fitted on its cases, and backgrounds.

A class that covers more than half of the labelled pixels is probably the background. Most networks are confident and
right there, so that its pixels hide how the structures are calibrated. Where nobody named it, it is not left out
silently: the scores with and without it are given, with the way to name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from segcal.calibrators import Calibrator
from segcal.evaluation.methods import Method
from segcal.evaluation.protocol import Protocol
from segcal.functional.catalogue import CATALOGUE
from segcal.tables.numbers import percent
from segcal.types import Array

MAJORITY = 0.5
METRICS = ("ece", "nll", "accuracy")


def majority_class(pixels: Array) -> int | None:
    """Return the class that has more than half of the pixels, by pixels of each class; None if there is none.

    Examples:
        >>> majority_class(np.array([6, 3, 2])), majority_class(np.array([5, 5]))
        (0, None)
    """
    total = int(pixels.sum())
    return int(np.argmax(pixels)) if total and pixels.max() > MAJORITY * total else None


def background_note(label: int, name: str, fraction: float, found: str) -> str:
    """Return a sentence about a class that is probably the background.

    Args:
        label: The class.
        name: Its name.
        fraction: Fraction of the labelled pixels that it covers.
        found: What was found over all pixels, and then without this class.
    """
    return (
        f"class '{name}' covers {percent(fraction)} of the labelled pixels: {found} without this class (except near "
        f"boundaries); if it is the background, set background={label} (--background {label})"
    )


def background_scores(about: Mapping[str, Any], scores: Mapping[str, float], method: str) -> str:
    """Return that sentence with scores of a method: all of them, and those that `about` holds without the class."""
    with_it, without = (_in_words(own) for own in (scores, about["scores"][method]))
    found = f"{method} has {with_it} over all pixels and {without}"
    return background_note(about["class"], about["name"], about["fraction"], found)


def leaks(methods: Mapping[str, Method], content: Mapping[str, str], consequence: str) -> list[str]:
    """Return a warning for each calibrator that was fitted on some of the cases.

    Args:
        methods: Methods by name; only fitted calibrators can leak.
        content: Fingerprint of each case by its name (`segcal.functional.fingerprint`), "" for none.
        consequence: What follows from it and what to do, as the end of the sentence.
    """
    return [
        f"{name} was fitted on {shared_in_words(shared, len(content))}: {consequence}"
        for name, method in methods.items()
        if (shared := shared_cases(method, content))
    ]


def shared_in_words(shared: int, cases: int) -> str:
    """Return on how many of some cases a method was fitted.

    Examples:
        >>> shared_in_words(2, 3), shared_in_words(3, 3), shared_in_words(1, 1)
        ('2 of these 3 cases', 'all of these 3 cases', 'this case')
    """
    if cases == 1:
        return "this case"
    return f"{'all' if shared == cases else shared} of these {cases} cases"


def shared_cases(method: Method, content: Mapping[str, str]) -> int:
    """Return on how many of the cases, known by their fingerprints, a method was fitted."""
    report = getattr(method, "fit_report_", None)
    known = set() if report is None else {*report.fingerprints} - {""}
    return sum(own in known for own in content.values())


def different_backgrounds(methods: Mapping[str, Method], protocol: Protocol) -> list[str]:
    """Return a warning for each calibrator that was fitted with a background other than the one of the evaluation."""
    found = []
    for name, method in methods.items():
        if isinstance(method, Calibrator) and method.background != protocol.background:
            fitted, measured = (
                "without a background" if own is None else f"with background={own}"
                for own in (method.background, protocol.background)
            )
            found.append(f"{name} was fitted {fitted} and is measured {measured}; use the same for both")
    return found


def _in_words(scores: Mapping[str, float]) -> str:
    ece, nll = (CATALOGUE[name].number(scores[name]) for name in ("ece", "nll"))
    return f"an ECE of {ece} % and an NLL of {nll}"
