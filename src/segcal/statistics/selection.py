"""Model selection: paired differences over held-out groups, and the one-standard-error rule."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

Sums = Float64[np.ndarray, " groups"]

WORTH = 1e-3
"""Smallest relative gain in loss for which a more complex model is chosen."""


class Difference(NamedTuple):
    """Mean difference over all pixels, and its standard error over groups."""

    mean: float
    error: float


def paired_difference(one: Sums, other: Sums, sizes: Sums) -> Difference:
    """Return by how much the mean of one exceeds that of another, from their sums over the same groups.

    Groups are the units: `d = sum(one - other) / sum(sizes)` is a ratio of sums over G groups, with squared standard
    error `G / (G - 1) * sum((one_g - other_g - d * sizes_g) ** 2) / sum(sizes) ** 2`. With one group the error is
    infinite.

    Examples:
        >>> paired_difference(np.array([3.0, 5.0]), np.array([1.0, 1.0]), np.array([1.0, 1.0]))
        Difference(mean=3.0, error=1.0)
    """
    gap, total, count = one - other, float(sizes.sum()), len(sizes)
    mean = float(gap.sum()) / total
    if count < 2:
        return Difference(mean, float("inf"))
    return Difference(mean, float(np.sqrt(count / (count - 1) * ((gap - mean * sizes) ** 2).sum())) / total)


class Selection(NamedTuple):
    """Index of the chosen model, and of the model with the lowest loss."""

    chosen: int
    best: int


def simplest_good(sums: Float64[np.ndarray, "models groups"], sizes: Sums) -> Selection:
    """Return the simplest model that is as good as the best: the one-standard-error rule.

    Models are ordered from simple to complex. The choice is the first whose loss exceeds the lowest by at most one
    standard error of the difference paired over groups, or by at most a thousandth. Models with a sum that is not
    finite are excluded, and so are models with a higher loss than the simplest, whose standard error may be large.

    Args:
        sums: Loss of each model, summed over the pixels of each held-out group.
        sizes: Number of pixels of each group.
    """
    usable = [k for k in range(len(sums)) if np.isfinite(sums[k]).all()]
    best = min(usable, key=lambda k: float(sums[k].sum()))
    rivals = [k for k in usable if sums[k].sum() <= sums[usable[0]].sum()]
    worth = WORTH * mean_of(sums[best], sizes)

    def is_as_good(k: int) -> bool:
        behind = paired_difference(sums[k], sums[best], sizes)
        return behind.mean <= max(behind.error, worth)

    return Selection(next(filter(is_as_good, rivals)), best)


def mean_of(sums: Sums, sizes: Sums) -> float:
    """Return the mean over all pixels."""
    return float(sums.sum() / sizes.sum())
