"""One reliability diagram and its histogram, on axes of matplotlib."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from segcal.evaluation.portraits import Curve
from segcal.report.figures.style import BAR, OVER, UNDER
from segcal.types import Array

_FEW = 0.01
"""Share of the pixels below which a bin is drawn pale: it adds next to nothing to the ECE."""


@dataclass(frozen=True)
class Bins:
    """Bins with pixels: left edge, width, pixels, accuracy, mean confidence, interval of the accuracy (NaN if none)."""

    left: Array
    width: Array
    count: Array
    accuracy: Array
    confidence: Array
    low: Array
    high: Array

    @classmethod
    def of_frame(cls, curve: pd.DataFrame) -> Bins:
        """From rows of `Results.curves`."""
        rows = curve[curve["count"] > 0]
        count, left = rows["count"].to_numpy(float), rows["low_edge"].to_numpy(float)
        width = rows["high_edge"].to_numpy(float) - left
        accuracy, confidence = rows["hit"].to_numpy() / count, rows["confidence"].to_numpy() / count
        return cls(left, width, count, accuracy, confidence, rows["low"].to_numpy(float), rows["high"].to_numpy(float))

    @classmethod
    def of_curve(cls, curve: Curve) -> Bins:
        """From the histogram of a portrait, whose bins have equal width."""
        count = np.array(curve.count, float)
        kept, bins = count > 0, len(count)
        left, none = np.arange(bins)[kept] / bins, np.full(int(kept.sum()), np.nan)
        accuracy, confidence = (np.array(values, float)[kept] / count[kept] for values in (curve.hit, curve.confidence))
        return cls(left, np.full(left.shape, 1 / bins), count[kept], accuracy, confidence, none, none)

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
            bins.width[kind],
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
