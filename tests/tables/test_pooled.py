"""PooledMetrics of sigmoid channels are averaged over those that have pixels."""

from __future__ import annotations

import math

import numpy as np
import pytest

from segcal.tables.summaries import PooledMetrics


def pooled(pixels: int, ece: float, nll: float = math.nan) -> PooledMetrics:
    """Metrics of five images, whose only interval is that of ECE: each repetition sees its first weight times it."""
    return PooledMetrics({"ece": ece, "nll": nll}, 5, pixels, ["ece"], lambda weights: ece * weights[:, :1])


@pytest.mark.parametrize(
    ("channels", "pixels", "ece", "nll"),
    [
        ([pooled(30, 0.1, 2.0)], 30, 0.1, 2.0),
        ([pooled(30, 0.1), pooled(10, 0.3, 4.0)], 40, 0.2, 4.0),
        ([pooled(0, math.nan), pooled(10, 0.3, 4.0), pooled(0, math.nan)], 10, 0.3, 4.0),
        ([pooled(0, math.nan), pooled(0, math.nan)], 0, math.nan, math.nan),
    ],
)
def test_the_mean_of_channels_by_hand(channels: list[PooledMetrics], pixels: int, ece: float, nll: float) -> None:
    found = PooledMetrics.mean(channels)
    assert (found.images, found.pixels, list(found.drawn)) == (5, pixels, ["ece"])
    assert dict(found.values) == pytest.approx({"ece": ece, "nll": nll}, nan_ok=True)
    drawn = found.resample(np.array([[1.0, 0, 0, 0, 0], [2.0, 0, 0, 0, 0]]))
    np.testing.assert_allclose(drawn, [[ece], [2 * ece]])
