"""What a figure is asked to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from segcal.evaluation.portraits import Portrait
from segcal.evaluation.results import Results
from segcal.types import InputError


@dataclass(frozen=True)
class Request:
    """Results, and which part of them to draw.

    Attributes:
        pyplot: matplotlib.pyplot.
        results: Of the evaluation.
        portraits: Of some of its cases.
        methods: Those to draw, in order.
        metric: For figures of one metric.
        region: For figures of one region; None for the default of the figure.
        label: Predicted class; "" for all pixels.
        case: Name of the portrait to draw; None for the first.
    """

    pyplot: Any
    results: Results
    portraits: Sequence[Portrait]
    methods: Sequence[str]
    metric: str
    region: str | None
    label: str
    case: str | None

    def portrait(self) -> Portrait:
        """The portrait to draw."""
        found = [portrait for portrait in self.some_portraits() if self.case in (None, portrait.name, portrait.title)]
        if not found:
            known = ", ".join(portrait.title for portrait in self.portraits)
            raise InputError(f"case must be one of {known}, got '{self.case}'")
        return found[0]

    def some_portraits(self) -> Sequence[Portrait]:
        """All portraits, of which there must be some."""
        if not self.portraits:
            raise InputError(
                "this figure shows cases, and there are no portraits of them; 'segcal evaluate --out' saves them, and "
                "in Python give portraits=segcal.evaluation.portraits.portray(cases, calibrators, results)"
            )
        return self.portraits
