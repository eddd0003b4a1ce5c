"""The fit of contextual temperature scaling: penalties by cross-validation on a sample, then all pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import product

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from segcal.calibrators.shared.context_sample import ContextSample, context_slabs
from segcal.calibrators.shared.survey import one_thread
from segcal.calibrators.temperature import TemperatureScaling
from segcal.cases import CaseStream
from segcal.functional.division import NO_FLOOR, Floor, soft_floor
from segcal.functional.log_linear import Loss, MeanLoss, Values, newton
from segcal.functional.pairs import (
    PairChoice,
    PairFit,
    PairPath,
    PairPixels,
    PairSums,
    fit_pairs,
    pair_margins,
    pair_path,
)
from segcal.functional.ridge import Choice, RidgeChoice, RidgePath, Strengths, ridge_path
from segcal.statistics.grouping import FEW_GROUPS
from segcal.types import Array

Bounds = tuple[float, float]

FEATURE_RIDGES = (np.inf, 10.0, 1.0, 0.1, 1e-3)
CLASS_RIDGES = (np.inf, 0.3, 0.1, 0.03, 0.01, 1e-3)
PAIR_RIDGES = (np.inf, 0.1, 0.03, 0.01, 3e-3, 1e-3)
"""Strengths to choose from, the strongest first."""

_SOFTNESS = 0.05  # over how much of log T the floor takes effect
_SEARCHED = (0.05, 100.0)  # temperatures, unless the bounds are wider
_TOLERANCE = 1e-13  # nats that are left to gain, so that no slope exceeds 1e-6
_PAIR_TOLERANCE = 1e-12  # nats that a further step would gain, so that no slope exceeds 1e-6
_PART = 1 << 18  # scores that pairs are looked up in at a time
_PAIR_SAMPLE = 1 << 15  # pixels that the ridge on pairs is chosen on


@dataclass(frozen=True)
class Outcome:
    """Intercept, feature weights and class offsets that were found, and how."""

    point: Float64[np.ndarray, " P"]
    nll: float
    steps: int
    converged: bool
    warnings: tuple[str, ...]
    raised: float = 0.0
    """Share of the pixels whose temperature would be below the floor without it."""


@dataclass(frozen=True)
class ContextFit:
    """A problem to solve: the sample, the stream of all cases, floor and settings."""

    sample: ContextSample
    stream: CaseStream
    floor: Floor
    bounds: Bounds
    brier: float = 0.0

    @classmethod
    def of(
        cls, sample: ContextSample, stream: CaseStream, bounds: Bounds, *, sharpen: bool = False, brier: float = 0.0
    ) -> ContextFit:
        """Return the problem with the usual floor, or without one where pixels may be sharpened."""
        floor = NO_FLOOR if sharpen else Floor(min(1.0, sample.temperature, bounds[1]), _SOFTNESS)
        return cls(sample, stream, floor, bounds, brier)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.stream.num_classes

    @property
    def many(self) -> int:
        """Number of features."""
        return len(self.sample.mean)

    @property
    def searched(self) -> Bounds:
        """Temperatures among which numbers are sought; those applied may be fewer."""
        low, high = self.bounds
        return min(low, _SEARCHED[0]), max(high, _SEARCHED[1])

    @property
    def cautious(self) -> bool:
        """True if the groups are too few to trust cross-validation to a fraction of its error."""
        return self.sample.grouping.count < FEW_GROUPS

    @property
    def only_one(self) -> str | None:
        """The reason why no more than one temperature can be fitted, if there is one."""
        low, high = self.searched
        if not low < self.sample.temperature < high:
            return "one temperature is all that these scores can have"  # the reason is in its own fit
        if self.sample.folds == 1:
            return (
                "all pixels, or nearly all, belong to one image or group, so that nothing shows how far to trust more "
                "than one temperature; one is used: fit on more images or groups"
            )
        return None

    def path(self, *, features: bool = True, classes: bool = True) -> RidgePath:
        """Return fits without each fold, from the one temperature of all pixels, with the penalties of a method.

        Those of a sample are made once: what a method may use is a choice among the penalties.
        """
        of_features = FEATURE_RIDGES if self.many and features else (np.inf,)
        of_classes = CLASS_RIDGES if classes else (np.inf,)
        among = [Strengths(*strengths) for strengths in product(of_features, of_classes)]
        key = "path", self.floor, self.bounds, self.brier
        known: RidgePath | None = self.sample.fits.get(key)
        if known is None or not set(among) <= set(known.among):
            start = np.zeros(1 + self.many + self.num_classes)
            start[0] = self.floor.inverse(float(np.log(self.sample.temperature)))
            known = self.sample.fits[key] = ridge_path(
                self.sample.data, start, among, self.searched, applied=self.bounds, floor=self.floor, brier=self.brier
            )
        return known.part(among)

    def losses(self, fold: int, *, features: bool, classes: bool, pairs: bool) -> Float64[np.ndarray, " N"]:
        """Return the NLL of each pixel of a fold, for a method fitted without it, its penalties chosen without it."""
        data, point = self.sample.data.part(fold, fold + 1), self._point(fold, features=features, classes=classes)
        temperature = self.inverse_temperatures(data.values, point).reciprocal()
        logits = data.logits.double()
        if pairs:
            path = self._pairs_of_folds
            offsets = path.fits[path.best(cautious=self.cautious, without=fold)][fold]
            if offsets.any():  # or it is the method without pairs, to the last bit
                return losses_of(pair_margins(logits[None], temperature[None, None], offsets)[0], data.labels)
        return losses_of((logits - logits.amax(dim=0)) / temperature, data.labels)

    def _point(self, fold: int, *, features: bool = True, classes: bool = True) -> Array:
        """Return the fit without a fold, with penalties chosen on the other folds among those of a method."""
        self.path()  # with the penalties of all methods, of which each takes its own
        path = self.path(features=features, classes=classes)
        return path.fits[path.best(cautious=self.cautious, without=fold)][fold]

    def held_out(self) -> Float64[np.ndarray, "folds 3"]:
        """Return pixels, NLL and loss on each fold left out, with penalties chosen on the other folds.

        Where only one temperature can be fitted, each fold is scored at that of the sample.
        """
        if self.only_one is None:
            path = self.path()
            best = [path.best(cautious=self.cautious, without=fold) for fold in range(self.sample.folds)]
            return path.totals[best, range(self.sample.folds)]
        data, alpha = self.sample.data, 1 / float(np.clip(self.sample.temperature, *self.bounds))
        nll = np.add.reduceat(losses_of(alpha * data.logits.double(), data.labels), data.edges[:-1])
        return np.stack([np.diff(data.edges), nll, nll], axis=1)

    @cached_property
    def _pairs_of_folds(self) -> PairPath:
        """Offsets of pairs without each fold, at the temperatures that were chosen for it."""
        return self.pair_path([self._point(fold) for fold in range(self.sample.folds)])

    def solve_one(self) -> Outcome:
        """Return one temperature for all pixels: temperature scaling itself."""
        found = TemperatureScaling(self.num_classes, bounds=self.bounds)._learn(self.stream)
        point = np.zeros(1 + self.many + self.num_classes)
        point[0] = np.log(found.details["temperature"])
        return Outcome(point, found.nll_after, found.steps, found.converged, found.warnings)

    def solve(self, choice: RidgeChoice) -> Outcome:
        """Return the numbers of least loss on all cases, from those of the sample.

        Narrow bounds have no part in it, because a pixel at them has no slope; they are applied to the result.
        """
        penalty = choice.strength.penalty(self.many, self.num_classes)
        # not from T = 1, which may lie outside the bounds, where nothing has a slope
        start = np.mean(choice.refits, axis=0)
        found = newton(self._loss(lambda: [self.sample.data.values]), start, penalty, tolerance=_TOLERANCE)
        found = newton(self._loss(self._slabs), found.point, penalty, tolerance=_TOLERANCE)
        shown, nll = found.loss, found.value
        if self.bounds != self.searched or self.brier:
            shown = self._loss(self._slabs, self.bounds).at(found.point, curvature=False)
            nll = shown.nll / shown.pixels
        raised, warnings = shown.raised / shown.pixels, tuple(self._warnings(shown))
        return Outcome(found.point, nll, found.evaluations, found.converged, warnings, raised)

    def _loss(self, pixels: Callable[[], Iterable[Values]], bounds: Bounds | None = None) -> MeanLoss:
        return MeanLoss(pixels, bounds or self.searched, floor=self.floor, brier=self.brier)

    def _slabs(self) -> Iterator[Values]:
        """Yield logits, labels and standardised features of all pixels."""
        mean, scale = (
            torch.from_numpy(values).to(self.stream.device, torch.float32).unsqueeze(1)
            for values in (self.sample.mean, self.sample.scale)
        )
        for logits, labels, known in context_slabs(self.stream, features=self.many > 0):
            yield logits, labels, (known - mean) / scale

    def _warnings(self, shown: Loss) -> Iterator[str]:
        if shown.bounded:
            low, high = self.bounds
            share = shown.bounded / shown.pixels
            yield f"the temperatures of {share:.2%} of the pixels are cut off at {low:.3g} or {high:.3g}"

    @one_thread()
    def pair_path(self, refits: Sequence[Array]) -> PairPath:
        """Return pair offsets fitted without each fold, each at temperatures that were fitted without it."""
        fitted, held_out = [], []
        data = self.sample.data.thinned(_PAIR_SAMPLE)
        for fold, point in enumerate(refits):
            parts = [data.part(fold, fold + 1), data.part(0, fold), data.part(fold + 1, self.sample.folds)]
            left, *others = [self._pairs(part.values, point) for part in parts if part.edges[-1]]
            fitted.append(others)
            held_out.append(left)
        return pair_path(fitted, held_out, PAIR_RIDGES, upper=self._upper)

    def solve_pairs(self, choice: RidgeChoice, outcome: Outcome) -> tuple[PairFit, PairChoice]:
        """Choose the ridge on pairs at the temperatures that were found, then fit their offsets to least NLL."""
        picked: PairChoice = Choice(np.inf)
        if choice.refits:
            picked = self.pair_path(choice.refits).choice(cautious=self.cautious)
        classes, ridge = self.num_classes, picked.strength
        zero = torch.zeros(classes, classes, dtype=torch.float64)
        if not np.isfinite(ridge):
            return PairFit(zero, outcome.nll, 0, True), picked
        with one_thread():
            fit = fit_pairs(self._pairs(self.sample.data.values, outcome.point).sums, zero, ridge, upper=self._upper)
        sums = self._pair_sums(outcome.point)
        return fit_pairs(sums, fit.offsets, ridge, upper=self._upper, tolerance=_PAIR_TOLERANCE), picked

    @property
    def _upper(self) -> float:
        """The largest pair offset: none raises a margin where a floor keeps confidence down."""
        return 0.0 if self.floor.value > 0 else np.inf

    def _pairs(self, pixels: Values, point: Array) -> PairPixels:
        """Return pixels by predicted class, at the temperatures of a point."""
        logits, labels, _ = pixels
        return PairPixels.of(logits, labels, logits.max(dim=0).indices, self.inverse_temperatures(pixels, point))

    def inverse_temperatures(self, pixels: Values, point: Array) -> Float64[Tensor, " N"]:
        """Return the inverse temperature of each pixel at a point."""
        logits, _, known = pixels
        weights, many = torch.from_numpy(point).to(logits.device), 1 + self.many
        exponent = weights[0] + weights[1:many] @ known.double() + weights[many:][logits.max(dim=0).indices]
        if self.floor.value > 0:
            exponent = soft_floor(exponent, *exponent.new_tensor(self.floor))
        return exponent.exp().clamp(*self.bounds).reciprocal()

    def _pair_sums(self, point: Array) -> Callable[[Tensor], PairSums]:
        """Return the function that sums up all pixels at pair offsets."""
        size = max(1, _PART // self.num_classes)

        def parts() -> Iterator[Values]:
            for slab in self._slabs():  # in parts, because what is needed on the way is larger than the logits
                yield from zip(*(torch.split(values, size, dim=-1) for values in slab), strict=True)

        def at(offsets: Tensor) -> PairSums:
            return reduce(PairSums.__add__, (self._pairs(part, point).sums(offsets) for part in parts()))

        return at


def losses_of(logits: Float64[Tensor, "L N"], labels: Int64[Tensor, " N"]) -> Float64[np.ndarray, " N"]:
    """Return the NLL of each pixel."""
    return torch.nn.functional.cross_entropy(logits.T, labels, reduction="none").numpy()
