"""Which of several models to trust: differences paired over groups left out, and the rule of one standard error."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy import stats

from segcal.types import Array

Sums = Float64[np.ndarray, " groups"]

WORTH = 1e-3
"""Share of the loss that a more complicated model must gain at least."""


class Difference(NamedTuple):
    """A mean over all pixels, its standard error over groups, and how far its 95 % interval reaches either way."""

    mean: float
    error: float
    reach: float


def paired_difference(one: Sums, other: Sums, sizes: Sums) -> Difference:
    """By how much the mean of one exceeds that of another, from their sums over the same groups.

    Groups are the units: `d = sum(one - other) / sum(sizes)` is a ratio of sums over G groups, its squared standard
    error `G / (G - 1) * sum((one_g - other_g - d * sizes_g) ** 2) / sum(sizes) ** 2`, and the interval that of
    Student's t with G - 1 degrees of freedom. Of one group there is no error, and it is taken as infinite.

    >>> paired_difference(np.array([3.0, 5.0]), np.array([1.0, 1.0]), np.array([1.0, 1.0]))[:2]
    (3.0, 1.0)
    """
    gap, total, count = one - other, float(sizes.sum()), len(sizes)
    mean = float(gap.sum()) / total
    if count < 2:
        return Difference(mean, float("inf"), float("inf"))
    error = float(np.sqrt(count / (count - 1) * ((gap - mean * sizes) ** 2).sum())) / total
    return Difference(mean, error, error * float(stats.t.ppf(0.975, count - 1)))


class Selection(NamedTuple):
    """The model chosen, and the one of least loss among those that could have been."""

    chosen: int
    best: int


def simplest_good(sums: Float64[np.ndarray, "models groups"], sizes: Sums) -> Selection:
    """The simplest model that is as good as the best; the first is the one to fall back on.

    Models are in order of simplicity. Only those count that are clearly better than the first: the paired 95 % interval
    of their gain lies above 0, and the gain is a thousandth of the loss at least. Of these, the simplest one is chosen
    that is within one standard error (of the paired difference) of the best. A model with a sum that is not finite is
    out of the race.

    Args:
        sums: The loss of each model, summed over the pixels of each group left out.
        sizes: The pixels of each group.
    """
    usable = [k for k in range(len(sums)) if np.isfinite(sums[k]).all()]
    clear = [k for k in usable if k and is_clear(paired_difference(sums[0], sums[k], sizes), mean_of(sums[0], sizes))]
    least: Array = sums.sum(axis=1)
    if not clear:
        return Selection(0, min(usable, key=lambda k: float(least[k])))
    best = min(clear, key=lambda k: float(least[k]))
    behind = {k: paired_difference(sums[k], sums[best], sizes) for k in clear}
    return Selection(next(k for k in clear if behind[k].mean <= behind[k].error), best)


def is_clear(gain: Difference, loss: float) -> bool:
    """Whether a gain on this loss is beyond doubt, and worth having."""
    return gain.mean > gain.reach and gain.mean > WORTH * loss


def mean_of(sums: Sums, sizes: Sums) -> float:
    """The mean over all pixels."""
    return float(sums.sum() / sizes.sum())
