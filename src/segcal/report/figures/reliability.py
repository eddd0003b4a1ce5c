"""Reliability diagrams: of an evaluation, of arrays and of a `CalibrationSuite`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from segcal.evidence.one_line import Values, reliability_curve
from segcal.evidence.scores import Scores
from segcal.report.colours import BAR, OVER, UNDER
from segcal.report.figures.drawing import Request, drawn, literal
from segcal.report.view import curve_of
from segcal.tables.numbers import with_unit
from segcal.types import Activation, Array, IgnoreIndex, InputError, check_choice, public

Named: TypeAlias = Mapping[str, Values]

_FEW = 0.01
"""Share of the pixels below which a bin is drawn pale: it adds next to nothing to the ECE."""


@dataclass(frozen=True)
class Bins:
    """Bins with pixels: left edge, width, pixels, accuracy, mean confidence, interval of the accuracy (NaN if none)."""

    left: Array
    width: float
    count: Array
    accuracy: Array
    confidence: Array
    low: Array
    high: Array

    @classmethod
    def of_sums(cls, count: Array, hit: Array, confidence: Array, *interval: Array) -> Bins:
        """Return the bins of pixels, correct pixels and summed confidence of bins of equal width."""
        pixels = np.maximum(count, 1)
        return cls.of_means(count, hit / pixels, confidence / pixels, *interval)

    @classmethod
    def of_means(cls, count: Array, accuracy: Array, confidence: Array, *interval: Array) -> Bins:
        """Return the bins of pixels, accuracy and mean confidence of bins of equal width."""
        kept, none = count > 0, np.full(len(count), np.nan)
        values = (count, accuracy, confidence, *(interval or (none, none)))
        held = (each[kept].astype(float) for each in values)
        return cls(np.flatnonzero(kept) / len(count), 1 / len(count), *held)

    @property
    def share(self) -> Array:
        """Share of the pixels in each bin."""
        return self.count / max(float(self.count.sum()), 1.0)

    @property
    def ece(self) -> float:
        """Expected calibration error; NaN without pixels."""
        return float((self.share * np.abs(self.confidence - self.accuracy)).sum()) if self.count.size else float("nan")


def diagram(axis: Any, bins: Bins, dot: float = 2.5) -> None:
    """Draw accuracy by confidence, with the gap to the mean confidence shaded; bins with few pixels are pale."""
    alphas = np.where(bins.share < _FEW, 0.3, 1.0)
    axis.bar(bins.left, bins.accuracy, bins.width, align="edge", color=_faded(BAR, alphas), edgecolor="white", lw=0.5)
    gaps = bins.confidence - bins.accuracy
    over = gaps > 0
    for kind, colour in ((over, OVER), (~over, UNDER)):
        faded = _faded(colour, 0.4 * alphas[kind])
        axis.bar(
            bins.left[kind],
            gaps[kind],
            bins.width,
            bins.accuracy[kind],
            align="edge",
            color=faded,
            edgecolor="white",
        )
    ends = np.abs(np.stack([bins.accuracy - bins.low, bins.high - bins.accuracy]))
    axis.errorbar(bins.confidence, bins.accuracy, np.nan_to_num(ends), fmt="o", ms=dot, color="black", lw=0.8)
    axis.plot([0, 1], [0, 1], color="0.5", lw=0.7, ls=(0, (4, 3)))
    axis.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1], box_aspect=1)


def histogram(axis: Any, bins: Bins) -> None:
    """Draw the share of pixels of each bin in percent."""
    axis.bar(bins.left, 100 * bins.share, bins.width, align="edge", color="0.7", edgecolor="white")
    axis.set(xlim=(0, 1), xticks=[0, 0.5, 1])


def _faded(colour: str, alphas: Array) -> list[tuple[str, float]]:
    return [(colour, float(alpha)) for alpha in alphas]


def draw_reliability(request: Request) -> Any:
    """Draw accuracy against confidence with the gaps shaded and intervals drawn, above the histogram of confidence."""
    region, label, curves = request.region or "all", request.label, request.results.curve_frame
    check_choice("region", region, curves["region"].unique())
    if label:
        check_choice("class", label, filter(None, curves["label"].unique()))
    found = {}
    for method in request.methods:
        curve = curve_of(request.results, method, region, label)
        if not len(curve):
            raise InputError(f"{method} has no reliability diagram of region '{region}' and class '{label or 'any'}'")
        found[method] = Bins.of_sums(*curve[["count", "hit", "confidence", "low", "high"]].to_numpy(float).T)
    return side_by_side(request.pyplot, found)


def side_by_side(pyplot: Any, found: Mapping[str, Bins]) -> Any:
    """Draw diagrams by their titles, four to a row."""
    across = min(len(found), 4)
    down = -(-len(found) // across)
    figure, axes = pyplot.subplots(
        2 * down,
        across,
        figsize=(1.75 * across + 0.35, 2.5 * down),
        height_ratios=[4, 1] * down,
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    pairs = [pair for k in range(down) for pair in axes[2 * k : 2 * k + 2].T]
    for pair in pairs[len(found) :]:
        for axis in pair:
            axis.set_visible(False)
    for (name, bins), (upper, lower) in zip(found.items(), pairs, strict=False):
        diagram(upper, bins)
        upper.set_title(f"{literal(name)}   ECE {with_unit('ece', bins.ece)}".strip())
        histogram(lower, bins)
        lower.set(xlabel="confidence", box_aspect=0.25)
        lower.tick_params(labelbottom=True)
    for upper, lower in pairs[::across]:
        upper.set_ylabel("accuracy")
        lower.set_ylabel("pixels (%)")
    return figure


@public
def reliability_diagram(
    logits: Values | Named,
    labels: Values,
    *,
    bins: int = 10,
    scores: Scores = "logits",
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
        scores: "logits", or "probabilities" if they are already normalised.
        ignore_index: Label, or labels, to ignore.
        mask: Pixels to measure; by default all.
        class_axis: Axis of the classes: 1 with a batch axis before it, 0 without one, -1 if it is the last.
        activation: "sigmoid" for channels that may overlap, with labels `[B, C, *S]`; all their pixels are shown.
    """
    several = logits if isinstance(logits, Mapping) else {"": logits}
    measured = partial(reliability_curve, bins=bins, scores=scores, ignore_index=ignore_index, mask=mask)
    found = {}
    for name, values in several.items():
        curve = measured(values, labels, class_axis=class_axis, activation=activation)
        found[name] = Bins.of_means(curve.pixels, curve.accuracy, curve.confidence)
    return drawn(lambda pyplot: side_by_side(pyplot, found))
