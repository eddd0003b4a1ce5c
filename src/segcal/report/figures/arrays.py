"""Reliability diagrams of arrays and of a `CalibrationSuite`, for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from segcal.evidence.one_line import ReliabilityCurve, Values, reliability_curve
from segcal.report.figures.diagram import Bins
from segcal.report.figures.notebook import drawn
from segcal.report.figures.reliability import side_by_side
from segcal.types import Activation, IgnoreIndex, public

Named: TypeAlias = Mapping[str, Values]


@public
def reliability_diagram(
    logits: Values | Named,
    labels: Values,
    *,
    bins: int = 10,
    ignore_index: IgnoreIndex = None,
    mask: Values | None = None,
    class_axis: int = 1,
    activation: Activation | None = None,
) -> Any:
    """Return a matplotlib Figure: accuracy against confidence of all pixels, above the histogram of confidence.

    Args:
        logits: Scores `[B, L, *S]`, or several of them by name, drawn side by side: `{"before": a, "after": b}`.
        labels: True classes `[B, *S]`, or the share of raters that chose each class.
        bins: Number of confidence bins R.
        ignore_index: Label, or labels, to ignore.
        mask: Pixels to measure; by default all.
        class_axis: Axis of the classes: 1 with a batch axis before it, 0 without one, -1 if it is the last.
        activation: "sigmoid" for channels that may overlap, with labels `[B, C, *S]`; all their pixels are shown.
    """
    several = logits if isinstance(logits, Mapping) else {"": logits}
    measured = partial(reliability_curve, bins=bins, ignore_index=ignore_index, mask=mask)
    curves = {
        name: measured(scores, labels, class_axis=class_axis, activation=activation) for name, scores in several.items()
    }
    return draw_curves(curves)


def draw_curves(curves: Mapping[str, ReliabilityCurve]) -> Any:
    """Return a matplotlib Figure of reliability diagrams side by side, by their titles."""
    return drawn(lambda pyplot: side_by_side(pyplot, {name: bins_of(curve) for name, curve in curves.items()}))


def bins_of(curve: ReliabilityCurve) -> Bins:
    """Return the bins that have pixels."""
    held, bins = curve.pixels > 0, len(curve.pixels)
    left, none = np.flatnonzero(held) / bins, np.full(int(held.sum()), np.nan)
    count, accuracy, confidence = (
        values[held].astype(float) for values in (curve.pixels, curve.accuracy, curve.confidence)
    )
    return Bins(left, np.full(left.shape, 1 / bins), count, accuracy, confidence, none, none)
