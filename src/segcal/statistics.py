"""Numbers one can defend: mean(std), image-level bootstrap, Mann-Whitney U, Benjamini-Hochberg."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from segcal.types import Array


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def mean_std(values: Sequence[float] | Array) -> tuple[float, float]:
    """Mean and standard deviation (of the sample itself, not of a population behind it), without the NaNs.

    >>> mean_std([1.0, 3.0, float("nan")])
    (2.0, 1.0)
    """
    kept = _finite(values)
    return (float(kept.mean()), float(kept.std())) if kept.size else (float("nan"), float("nan"))


def bootstrap_weights(units: int, repetitions: int, seed: int) -> Array:
    """How often each unit is drawn in each repetition: Int64[repetitions, units], rows summing to `units`."""
    random = np.random.default_rng(seed)
    return random.multinomial(units, np.full(units, 1 / units), size=repetitions)


def bootstrap_interval(
    statistic: Callable[[Array], Array], units: int, *, level: float = 0.95, repetitions: int = 1000, seed: int = 0
) -> Interval:
    """Percentile interval of a statistic when whole units (images) are drawn again with replacement.

    Args:
        statistic: Maps weights `[repetitions, units]` to the statistic of each repetition.
        units: How many images there are; with fewer than two nothing can be said, and the interval is NaN.
        level: Share of repetitions that the interval holds.
        repetitions: How often to draw.
        seed: Of the drawing.
    """
    if units < 2:
        return Interval(float("nan"), float("nan"))
    drawn = _finite(statistic(bootstrap_weights(units, repetitions, seed)))
    if not drawn.size:
        return Interval(float("nan"), float("nan"))
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def mann_whitney_p(ours: Sequence[float] | Array, theirs: Sequence[float] | Array) -> float:
    """Two-sided p-value of the Mann-Whitney U test; 1 where there is nothing to tell apart."""
    a, b = _finite(ours), _finite(theirs)
    if not a.size or not b.size or np.ptp(np.concatenate([a, b])) == 0:
        return 1.0
    return float(stats.mannwhitneyu(a, b, alternative="two-sided").pvalue)


def significantly_better(
    pairs: Sequence[tuple[Array, Array]], *, lower_is_better: Sequence[bool], rate: float = 0.05
) -> list[bool]:
    """For each pair (ours, theirs): are ours better, at a false discovery rate of `rate` over all pairs?

    Differences are told by the Mann-Whitney U test with Benjamini and Hochberg's correction (Sec. 4, "Statistical
    Considerations"), their direction by the mean rank.
    """
    if not pairs:
        return []
    adjusted = stats.false_discovery_control([mann_whitney_p(*pair) for pair in pairs], method="bh")
    lower = [_tends_lower(*pair) for pair in pairs]
    return [
        bool(p <= rate) and (ours_lower if wanted else not ours_lower)
        for p, ours_lower, wanted in zip(adjusted, lower, lower_is_better, strict=True)
    ]


def _tends_lower(ours: Array, theirs: Array) -> bool:
    a, b = _finite(ours), _finite(theirs)
    ranks = stats.rankdata(np.concatenate([a, b]))
    return bool(a.size and b.size and ranks[: a.size].mean() < ranks[a.size :].mean())


def _finite(values: Sequence[float] | Array) -> Array:
    array = np.asarray(values, dtype=np.float64)
    return array[~np.isnan(array)]
