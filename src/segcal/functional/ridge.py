"""How strongly to shrink towards one temperature: ridges chosen by cross-validation in folds of whole groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from segcal.functional.log_linear import Pixels, fit_in_memory, loss_sums, read_loss
from segcal.types import Array

_TOLERANCE = 1e-8  # of the loss that a last step may promise
_EQUAL = 1e-6  # nats by which losses may differ and count as equal


@dataclass(frozen=True)
class Strengths:
    """What the squares of the features' weights and of the classes' offsets cost; infinity keeps them at 0."""

    features: float
    classes: float

    def penalty(self, features: int, classes: int) -> Array:
        """Of the intercept, each weight and each offset."""
        return np.concatenate([[0.0], np.full(features, self.features), np.full(classes, self.classes)])


TEMPERATURE_SCALING = Strengths(np.inf, np.inf)
"""Neither is free: one temperature is left."""


@dataclass(frozen=True)
class Tried:
    """Strengths, with the mean NLL and loss on groups that were not fitted on."""

    strengths: Strengths
    nll: float
    loss: float


@dataclass(frozen=True)
class Choice:
    """The best strengths, all that were tried, and what was fitted without each fold at the best."""

    strengths: Strengths
    tried: tuple[Tried, ...]
    refits: tuple[Array, ...]

    def intervals(self, point: Array) -> Array:
        """95 % intervals `[P, 2]` of a point, by the jackknife over folds."""
        refits = np.stack(self.refits)
        folds = len(refits)
        spread = np.sqrt((folds - 1) / folds * ((refits - refits.mean(axis=0)) ** 2).sum(axis=0))
        reach = stdtrit(folds - 1, 0.975) * spread
        return np.stack([point - reach, point + reach], axis=1)


def choose_ridge(
    pixels: Pixels,
    start: Array,
    among: Sequence[Strengths],
    bounds: tuple[float, float],
    *,
    applied: tuple[float, float] | None = None,
    brier: float = 0.0,
) -> Choice:
    """The strengths of least loss on the folds left out; of equal ones the first, so the strongest comes first.

    Temperatures are fitted within the bounds, and scored within those that will be `applied`, if others.
    Each fit starts where the one before it ended, with 0 for what is not free.
    """
    features, classes = len(pixels.features), len(pixels.logits)
    folds = len(pixels.edges) - 1
    totals = np.zeros((len(among), 3))
    points: list[list[Array]] = [[] for _ in among]
    for fold in range(folds):
        parts = [pixels.part(0, fold), pixels.part(fold + 1, folds)]
        parts = [part for part in parts if part.edges[-1]]
        held_out, point = pixels.part(fold, fold + 1), start
        for k, strengths in enumerate(among):
            penalty = strengths.penalty(features, classes)
            begin = np.where(np.isfinite(penalty), point, 0.0)
            point, _ = fit_in_memory(parts, begin, penalty, bounds, brier=brier, tolerance=_TOLERANCE)
            points[k].append(point)
            sums = loss_sums(held_out.logits, held_out.labels, held_out.features, point, applied or bounds, brier=brier)
            found = read_loss(sums, point.size)
            totals[k] += found.pixels, found.nll, found.value
    tried = [Tried(s, nll / n, loss / n) for s, (n, nll, loss) in zip(among, totals.tolist(), strict=True)]
    least = min(row.loss for row in tried)
    best = next(k for k, row in enumerate(tried) if row.loss <= least + _EQUAL)
    return Choice(among[best], tuple(tried), tuple(points[best]))
