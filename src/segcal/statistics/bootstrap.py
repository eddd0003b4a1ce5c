"""Bootstrap intervals: whole images, or whole groups of images, are resampled with replacement.

Pixels of one image are not independent, and neither are frames of one video or scans of one patient, so the units of
resampling must be the units that were sampled. Two intervals are read from the repetitions: the percentile interval,
and Efron's BCa interval (1987), which corrects it for bias and for a variance that changes with the value. Repetitions
of n units vary less than the estimate, as if the variance were divided by n instead of n - 1 and known exactly, so both
intervals are expanded by the ratio of Student's t to the normal distribution (Hesterberg 2015).

Errors such as ECE add up absolute gaps, so noise can only raise them: every repetition adds its own, and the percentile
interval of a calibrated network lies above the estimate. Where `noise` is given, the lower end is 0 if noise alone
explains the estimate, and is otherwise moved down by twice the bias of the repetitions; the upper end is that of the
percentile interval. docs/results/statistics.md has the simulated coverage. No interval leaves out its estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from segcal.types import Array

IntervalKind = Literal["percentile", "bca"]
_ROWS = 256  # repetitions whose statistic is computed at a time
_EXACT = 52  # bits of a sum of doubles that is exact
_FEW = 10  # with fewer clusters, intervals are too short (docs/results/statistics.md)


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def bootstrap_weights(units: int, repetitions: int, seed: int) -> Array:
    """Return how often each unit is drawn in each repetition: Int64[repetitions, units], rows summing to `units`."""
    random = np.random.default_rng(seed)
    return random.multinomial(units, np.full(units, 1 / units), size=repetitions)


def weighted_sums(weights: Array, values: Array) -> Array:
    """Return `weights @ values`, the same bits for any order of the sum, and so for any number of threads.

    Weights are whole numbers, as drawn. Each column of the values is split into two parts of so few bits that sums of
    either are exact; what is left over is below 2^-60 of the largest value.

    Examples:
        >>> weighted_sums(np.array([[2, 0, 1]]), np.array([0.1, 5.0, 0.2]))
        array([0.4])
    """
    drawn = np.asarray(weights, dtype=np.float64)
    bits = _EXACT - int(np.ceil(np.log2(max(2.0, drawn.sum(axis=1).max(initial=0.0)))))
    largest = np.abs(values).max(axis=0, initial=0.0)
    step = np.ldexp(1.0, np.frexp(largest)[1] - bits)
    with np.errstate(invalid="ignore"):  # infinite values, whose sum is not known
        coarse = np.rint(values / step) * step
        fine = np.rint((values - coarse) / step * 2.0**bits) * (step / 2.0**bits)
        return np.asarray(drawn @ coarse + drawn @ fine)


def weighted_ratio(weights: Array, totals: Array, counts: Array) -> Array:
    """Return `weights @ totals` divided by `weights @ counts`, both as `weighted_sums`; NaN where the divisor is 0.

    Examples:
        >>> weighted_ratio(np.array([[2, 1], [0, 1]]), np.array([[1.0], [4.0]]), np.array([[1.0], [0.0]]))
        array([[ 3.],
               [nan]])
    """
    many = weighted_sums(weights, counts)
    unknown = np.full(many.shape, np.nan)
    return np.asarray(np.divide(weighted_sums(weights, totals), many, out=unknown, where=many > 0))


def clusters_of(groups: Sequence[str]) -> Array:
    """Return the cluster of each image, by first appearance; an image without a group ("") is its own cluster.

    Examples:
        >>> clusters_of(["a", "", "b", "a", ""]).tolist()
        [0, 1, 2, 0, 3]
    """
    known: dict[object, int] = {}
    return np.array([known.setdefault(group or (k,), len(known)) for k, group in enumerate(groups)], dtype=np.int64)


def bootstrap_doubts(groups: Sequence[str]) -> list[str]:
    """Return a warning if intervals over images with these groups come from too few clusters, or nothing.

    Examples:
        >>> bootstrap_doubts(["a", "b", "a"])
        ['95 % intervals from 2 groups are too short; measure 10 or more']
    """
    many = len(set(clusters_of(groups).tolist()))
    if many >= _FEW:
        return []
    what = f"{many} {'group' if any(groups) else 'image'}{'s' if many > 1 else ''}"
    doubt = f"95 % intervals from {what} are too short" if many > 1 else f"{what} gives no 95 % interval"
    return [f"{doubt}; measure {_FEW} or more"]


def bootstrap_interval(statistic: Callable[[Array], Array], units: int, **settings: Any) -> Interval:
    """Return the interval of one number; settings are those of `bootstrap_intervals`."""
    low, high = bootstrap_intervals(lambda weights: statistic(weights)[:, np.newaxis], units, **settings)
    return Interval(*(float(ends[0]) if ends.size else float("nan") for ends in (low, high)))


def bootstrap_intervals(
    statistic: Callable[[Array], Array],
    units: int,
    *,
    kind: IntervalKind = "percentile",
    level: float = 0.95,
    repetitions: int = 1000,
    seed: int = 0,
    clusters: Array | None = None,
    noise: Callable[[Array], Array] | None = None,
) -> tuple[Array, Array]:
    """Return the lower and upper ends `[K]` of the intervals of K numbers when whole units (images) are resampled.

    Args:
        statistic: Maps weights `[repetitions, units]` to the numbers of each repetition `[repetitions, K]`; a
            repetition in which a number is NaN is skipped in that number's interval.
        units: Number of images.
        kind: "percentile", or "bca", which also needs the statistic of weights 1 and of weights that leave one cluster
            out.
        level: Nominal coverage.
        repetitions: Number of repetitions.
        seed: Seed of the resampling.
        clusters: Cluster of each image (see `clusters_of`); clusters are drawn whole. By default each image is its own.
        noise: Maps weights to the values `[repetitions, K]` that the numbers would have if all gaps were 0; NaN for
            numbers that are not sums of absolute gaps.

    Returns:
        The ends; NaN with fewer than two clusters or without repetitions, or where every repetition is NaN.
    """
    member = np.arange(units) if clusters is None else np.asarray(clusters)
    many = int(member.max()) + 1 if units else 0
    if many < 2 or repetitions == 0:
        unknown = np.full(np.shape(statistic(np.ones((1, units), np.int64)))[1:] if units else 0, np.nan)
        return unknown, unknown

    def of(weights: Array, statistic: Callable[[Array], Array] = statistic) -> Array:
        exact = weights.astype(np.float64)  # products of integers and floats are slow
        parts = [statistic(exact[k : k + _ROWS, member]) for k in range(0, len(exact), _ROWS)]
        return np.concatenate(parts).astype(np.float64)

    weights = bootstrap_weights(many, repetitions, seed)
    drawn, whole = of(weights), of(np.ones((1, many), np.int64))[0]
    shares = expanded_shares(level, many)
    percentiles = [_quantiles(column, shares) for column in drawn.T]
    ends = list(percentiles)
    if kind == "bca":
        left = of(1 - np.eye(many, dtype=np.int64))
        ends = [
            _quantiles(column, _bca_shares(column, value, own, shares))
            for column, value, own in zip(drawn.T, whole, left.T, strict=True)
        ]
    if noise is not None:
        pure = of(weights, noise)
        for k, usual in enumerate(percentiles):
            corrected = _corrected(usual, drawn[:, k], whole[k], pure[:, k], level)
            ends[k] = ends[k] if corrected is None else corrected
    low, high = np.array(ends).reshape(-1, 2).T
    known = ~np.isnan(whole)
    return np.where(known, np.minimum(low, whole), low), np.where(known, np.maximum(high, whole), high)


@dataclass(frozen=True)
class Drawing:
    """Settings of the bootstrap: the cases, the group of each ("" for none), kind, repetitions and seed."""

    cases: Sequence[str]
    groups: Sequence[str]
    kind: IntervalKind = "percentile"
    repetitions: int = 1000
    seed: int = 0

    def intervals(
        self, statistic: Callable[[Array], Array], noise: Callable[[Array], Array] | None = None
    ) -> tuple[Array, Array]:
        """Return the ends of the 95 % intervals of numbers that are functions of the weights of the images."""
        settings: dict[str, Any] = {"kind": self.kind, "repetitions": self.repetitions, "seed": self.seed}
        clusters = clusters_of(self.groups)
        return bootstrap_intervals(statistic, len(self.cases), **settings, clusters=clusters, noise=noise)


def expanded_shares(level: float, units: int) -> Array:
    """Return the quantiles at which a percentile interval ends, expanded for few units (Hesterberg 2015, Sec. 5.1).

    Examples:
        >>> expanded_shares(0.95, 10).round(3), expanded_shares(0.95, 10**6).round(3)
        (array([0.009, 0.991]), array([0.025, 0.975]))
    """
    from scipy.special import ndtr, stdtrit  # noqa: PLC0415  slow to import

    # bounded, because the BCa interval computes with the quantile of what is returned
    high = float(ndtr(min(np.sqrt(units / (units - 1)) * stdtrit(units - 1, (1 + level) / 2), 6.0)))
    return np.array([1 - high, high])


def _corrected(ends: Array, drawn: Array, value: float, noise: Array, level: float) -> Array | None:
    """Return percentile ends, the lower one corrected for the noise of the repetitions; None where it is unknown."""
    pure = _finite(noise)
    if not pure.size or np.isnan(value):
        return None
    low = ends[0] - 2 * (float(_finite(drawn).mean()) - value)
    return np.array([0.0 if value <= np.quantile(pure, level) else max(0.0, low), ends[1]])


def _bca_shares(drawn: Array, value: float, without_one: Array, shares: Array) -> Array:
    """Return the quantiles at which a BCa interval ends (Efron 1987, Eq. 4.4 and 7.3)."""
    from scipy.special import ndtr, ndtri  # noqa: PLC0415  slow to import, and the percentile interval needs neither

    draws, left = _finite(drawn), _finite(without_one)
    if not draws.size or not left.size or np.isnan(value):
        return np.full_like(shares, np.nan)
    below = ((draws < value).mean() + (draws <= value).mean()) / 2
    # if all repetitions lie on one side, half a repetition keeps the bias finite
    bias = ndtri(np.clip(below, 0.5 / draws.size, 1 - 0.5 / draws.size))
    off = left.mean() - left
    spread = np.sum(off**2)
    acceleration = np.sum(off**3) / (6 * spread**1.5) if spread > 0 else 0.0
    z = bias + ndtri(shares)
    return np.asarray(ndtr(bias + z / (1 - acceleration * z)))


def _quantiles(values: Array, shares: Array) -> Array:
    kept = _finite(values)
    return np.quantile(kept, shares) if kept.size and not np.isnan(shares).any() else np.full(shares.shape, np.nan)


def _finite(values: Array) -> Array:
    return values[~np.isnan(values)]
