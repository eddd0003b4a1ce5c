"""Doubts about an evaluation: calibrators that were fitted on its cases, and backgrounds.

A class that covers more than half of the labelled pixels is probably the background. Most networks are confident and
right there, so that its pixels hide how the structures are calibrated. Where nobody named it, it is not left out
silently: the scores with and without it are given, with the way to name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class UnnamedBackground:
    """A class that is probably the background, and the scores without it.

    Attributes:
        index: The class.
        name: Its name.
        fraction: Fraction of the labelled pixels that it covers.
        inside: Scores over all labelled pixels, by method and metric.
        outside: Scores without this class, except near boundaries.
    """

    index: int
    name: str
    fraction: float
    inside: Mapping[str, Mapping[str, float]]
    outside: Mapping[str, Mapping[str, float]]

    def note(self, method: str) -> str:
        """Return a sentence with the scores of a method with and without the class, and how to name the background."""
        with_it, without = (_in_words(scores[method]) for scores in (self.inside, self.outside))
        return (
            f"class '{self.name}' covers {percent(self.fraction)} of the labelled pixels: {method} has {with_it} over "
            f"all pixels and {without} without this class (except near boundaries); if it is the background, set "
            f"background={self.index} (--background {self.index})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for the settings of results."""
        return {"class": self.index, "name": self.name, "fraction": self.fraction, "scores": dict(self.outside)}


def leaks(methods: Mapping[str, Method], content: Mapping[str, str], consequence: str) -> list[str]:
    """Return a warning for each calibrator that was fitted on some of the cases.

    Args:
        methods: Methods by name; only fitted calibrators can leak.
        content: Fingerprint of each case by its name (`segcal.functional.fingerprint`), "" for none.
        consequence: What follows from it and what to do, as the end of the sentence.
    """
    found = []
    for name, method in methods.items():
        report = getattr(method, "fit_report_", None)
        if report is None:
            continue
        if report.fingerprints:
            known, how = {*report.fingerprints} - {""}, ""
            shared = [case for case, own in content.items() if own in known]
        else:
            how = " by their names (their content was not saved with it)"
            shared = [case for case in content if case in report.names]
        if shared:
            found.append(f"{name} was fitted on {len(shared)} of these {len(content)} cases{how}: {consequence}")
    return found


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
