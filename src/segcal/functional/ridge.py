"""The strength of ridge penalties towards one temperature, chosen by cross-validation in folds of whole groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Bool, Float64
from scipy.special import stdtrit

from segcal.functional.division import NO_FLOOR, Floor
from segcal.functional.log_linear import FeaturePixels, MeanLoss, newton
from segcal.types import Array

Strength = TypeVar("Strength")
Fit = TypeVar("Fit")

_TOLERANCE = 1e-10  # nats that are left to gain
_EQUAL = 1e-6  # nats within which two losses count as equal


@dataclass(frozen=True)
class Strengths:
    """Penalties on the squares of the feature weights and the class offsets; infinity keeps them at 0."""

    features: float
    classes: float

    def penalty(self, features: int, classes: int) -> Array:
        """Return the penalty of the intercept, each weight and each offset."""
        return np.concatenate([[0.0], np.full(features, self.features), np.full(classes, self.classes)])


TEMPERATURE_SCALING = Strengths(np.inf, np.inf)
"""Neither is free: one temperature remains."""


@dataclass(frozen=True)
class Tried(Generic[Strength]):
    """A strength, with its mean NLL and loss on the folds left out."""

    strength: Strength
    nll: float
    loss: float


@dataclass(frozen=True)
class Choice(Generic[Strength, Fit]):
    """The chosen strength, all that were tried, and the fits without each fold at the chosen one."""

    strength: Strength
    tried: tuple[Tried[Strength], ...] = ()
    refits: tuple[Fit, ...] = ()


@dataclass(frozen=True)
class FoldPath(Generic[Strength, Fit]):
    """Fits without each fold at several strengths of a penalty, and their loss on the fold left out.

    Attributes:
        among: The strengths, the strongest first.
        totals: Pixels, NLL and loss of each strength on each fold left out.
        fits: Fits of each strength without each fold.
        caution: What a cautious choice takes the largest of; without, it takes the strongest.
    """

    among: tuple[Strength, ...]
    totals: Float64[np.ndarray, "K folds 3"]
    fits: tuple[tuple[Fit, ...], ...]
    caution: tuple[float, ...] | None = None

    def part(self, among: Sequence[Strength]) -> FoldPath[Strength, Fit]:
        """Return the path of some of the strengths."""
        rows = [self.among.index(strength) for strength in among]
        caution = None if self.caution is None else tuple(self.caution[k] for k in rows)
        return FoldPath(tuple(among), self.totals[rows], tuple(self.fits[k] for k in rows), caution)

    def best(self, *, cautious: bool, without: int | None = None) -> int:
        """Return the position of the strength of least loss; of equal ones the first.

        A `cautious` choice is among those within one standard error, over folds, of the least loss. One fold may have
        no part in the choice.
        """
        totals = self.totals[:, [fold for fold in range(self.totals.shape[1]) if fold != without]]
        losses = totals[:, :, 2].sum(axis=1) / totals[:, :, 0].sum(axis=1)
        best = first_least(losses.tolist())
        if cautious:
            near = within_one_error(totals, best)
            caution = -np.arange(len(near)) if self.caution is None else np.array(self.caution)
            best = first_least(np.where(near & (caution == caution[near].max()), losses, np.inf).tolist())
        return best

    def choice(self, *, cautious: bool) -> Choice[Strength, Fit]:
        """Return the chosen strength with all that were tried."""
        rows = zip(self.among, self.totals.sum(axis=1).tolist(), strict=True)
        tried = tuple(Tried(strength, nll / pixels, loss / pixels) for strength, (pixels, nll, loss) in rows)
        best = self.best(cautious=cautious)
        return Choice(self.among[best], tried, self.fits[best])


RidgeChoice: TypeAlias = Choice[Strengths, Array]
RidgePath: TypeAlias = FoldPath[Strengths, Array]


def jackknife_intervals(point: Array, refits: Sequence[Array]) -> Array:
    """Return 95 % intervals `[P, 2]` of a point from its fits without each fold."""
    values, folds = np.stack(refits), len(refits)
    spread = np.sqrt((folds - 1) / folds * ((values - values.mean(axis=0)) ** 2).sum(axis=0))
    reach = stdtrit(folds - 1, 0.975) * spread
    return np.stack([point - reach, point + reach], axis=1)


def ridge_path(
    pixels: FeaturePixels,
    start: Array,
    among: Sequence[Strengths],
    bounds: tuple[float, float],
    *,
    applied: tuple[float, float] | None = None,
    floor: Floor = NO_FLOOR,
    brier: float = 0.0,
) -> RidgePath:
    """Fit each of the strengths without each fold, and measure the fold left out.

    Temperatures are fitted within the bounds, and scored within those that will be `applied`, if others. Each fit
    starts from the one before it, with 0 for what is not free.
    """
    features, classes = len(pixels.features), len(pixels.logits)
    folds = len(pixels.edges) - 1
    totals = np.zeros((len(among), folds, 3))
    points: list[list[Array]] = [[] for _ in among]
    for fold in range(folds):
        parts = [part.values for part in (pixels.part(0, fold), pixels.part(fold + 1, folds)) if part.edges[-1]]
        left = [pixels.part(fold, fold + 1).values]
        loss = MeanLoss(partial(iter, parts), bounds, floor=floor, brier=brier)
        held_out = MeanLoss(partial(iter, left), applied or bounds, floor=floor, brier=brier)
        known = start
        for k, strengths in enumerate(among):
            penalty = strengths.penalty(features, classes)
            found = newton(loss, np.where(np.isfinite(penalty), known, 0.0), penalty, tolerance=_TOLERANCE)
            known = found.known
            points[k].append(found.point)
            sums = held_out.at(found.point, curvature=False)
            totals[k, fold] = sums.pixels, sums.nll, sums.value
    return FoldPath(tuple(among), totals, tuple(map(tuple, points)), tuple(strengths.classes for strengths in among))


def first_least(losses: Sequence[float]) -> int:
    """Return the first place whose loss counts as equal to the least."""
    return next(k for k, loss in enumerate(losses) if loss <= min(losses) + _EQUAL)


def within_one_error(totals: Float64[np.ndarray, "K folds 3"], best: int) -> Bool[np.ndarray, " K"]:
    """Return which choices lose at most one standard error, over folds, against the best; totals as pixels, NLL, loss.

    With G folds of n pixels and differences d, the squared error of the mean is `G / (G - 1) sum((d - mean n)^2)`.
    """
    pixels, loss = totals[0, :, 0], totals[:, :, 2]
    gap, folds = loss - loss[best], len(pixels)
    mean = gap.sum(axis=1) / pixels.sum()
    spread = ((gap - mean[:, np.newaxis] * pixels) ** 2).sum(axis=1)
    near: Array = mean <= np.sqrt(folds / max(folds - 1, 1) * spread) / pixels.sum() + _EQUAL
    return near
