"""How numbers are written: the one place that decides unit, digits and title of a metric.

Terminal, LaTeX, Markdown, page and figures all use these functions, so the same number reads the same everywhere.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from segcal.functional.binning import HIGHER_IS_BETTER

MISSING = "-"

_TITLES = {"nll": "NLL", "brier": "Brier", "entropy": "Entropy", "accuracy": "Accuracy", "miou": "mIoU"}
_NOT_PERCENT = ("nll", "brier", "entropy")  # and their parts: nll-calibration, brier-refinement, ...


class Metric(NamedTuple):
    """How a metric is shown: percentages have two digits, everything else four."""

    title: str
    percent: bool
    higher_is_better: bool

    @property
    def scale(self) -> int:
        """What the fraction is multiplied with."""
        return 100 if self.percent else 1

    @property
    def digits(self) -> int:
        """Digits after the point."""
        return 2 if self.percent else 4

    @property
    def unit(self) -> str:
        """The unit with the space before it."""
        return "\u00a0%" if self.percent else ""


def metric_of(name: str) -> Metric:
    """Return how the metric of this name is shown.

    >>> metric_of("ece")
    Metric(title='ECE', percent=True, higher_is_better=False)
    """
    title = _TITLES.get(name, name.upper())
    return Metric(title, not name.startswith(_NOT_PERCENT), name in HIGHER_IS_BETTER)


def number(metric: str, value: float) -> str:
    """Write a value without its unit.

    >>> number("ece", 0.0123), number("nll", 0.338), number("ece", float("nan"))
    ('1.23', '0.3380', '-')
    """
    if math.isnan(value):
        return MISSING
    shown = metric_of(metric)
    return f"{shown.scale * value:.{shown.digits}f}"


def with_unit(metric: str, value: float) -> str:
    """Write a value with its unit: `1.23 %`, `0.3380`."""
    return f"{number(metric, value)}{metric_of(metric).unit}"


def with_interval(metric: str, value: float, low: float, high: float, *, unit: bool = False) -> str:
    """Write a value and its interval, which is left out where it is not known.

    >>> with_interval("nll", 0.3, 0.25, 0.375)
    '0.3000 [0.2500, 0.3750]'
    """
    text = with_unit(metric, value) if unit else number(metric, value)
    if math.isnan(low) or math.isnan(high):
        return text
    return f"{text} [{number(metric, low)}, {number(metric, high)}]"
