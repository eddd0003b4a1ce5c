"""Contextual temperature scaling: a temperature for every pixel from a handful of numbers that explain themselves.

    log T(x) = b + w . f(x) + c[predicted class of x]

where f are the features of the pixel and its surroundings (`functional.context`), standardised on the fitting data. No
temperature is below 1, or below that of temperature scaling where even that is less: what looks too timid on the images
fitted on is the first to be wrong on others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from time import perf_counter
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from segcal.calibrators.base import FitReport, TemperatureCalibrator
from segcal.calibrators.shared.explanation import account
from segcal.calibrators.shared.sampler import Sampler
from segcal.calibrators.temperature import TemperatureScaling
from segcal.cases import reread, slabs_of
from segcal.functional.context import FEATURES, REACH, context_features, context_temperature
from segcal.functional.lbfgs import Block, Metric, Minimum, minimise
from segcal.functional.log_linear import Loss, Pixels, fit_in_memory, loss_sums, read_loss
from segcal.functional.probability import at_least_float32
from segcal.functional.ridge import TEMPERATURE_SCALING, Choice, Strengths, choose_ridge
from segcal.functional.temperature import likelihood, optimal_inverse_temperature
from segcal.statistics.folds import folds_of
from segcal.types import Array, Case, IgnoreIndex, Image, InputError, Logits, Temperature

ContextLoss = Literal["nll", "nll+brier"]
Bounds = tuple[float, float]

_FEATURE_RIDGES = (np.inf, 10.0, 1.0, 0.1, 1e-3)
_CLASS_RIDGES = (np.inf, 0.3, 0.1, 0.03, 0.01, 1e-3)
"""Strengths to choose from, the strongest first."""
_SAMPLE = 1 << 17  # pixels that strengths are chosen on
_SAMPLE_LOGITS = 1 << 23  # and scores, where there are many classes
_SEARCHED = (0.05, 100.0)  # temperatures, unless the bounds are wider
_PASSES = 30
_TOLERANCE = 1e-5  # of the rounded slope: 5e-11 of NLL is left to gain, and each pass goes over all pixels
_CONTEXT = -(-REACH // 8) * 8  # whole slabs of slices, so that slabs give the same bits as the whole


class ContextualTemperatureScaling(TemperatureCalibrator):
    """Divide the logits of each pixel by `exp(b + w . features + c[predicted class])`.

    The numbers are those of least mean loss plus `ridge_w / 2 |w|^2 + ridge_c / 2 |c|^2`. Because the loss is a mean
    over pixels, the second term weighs the more against a class the fewer pixels are predicted as it: rare classes are
    drawn to the common temperature. Both strengths are chosen by cross-validation over folds of whole groups
    (`Case.group`; an image without one is a group of its own), from infinity, which is temperature scaling, downwards.
    They are chosen on a sample in memory, by Newton's method; L-BFGS then finishes on all pixels, from the sample's
    solution and with its curvature as the metric. There is no learning rate and nothing random.

    Args:
        num_classes: L.
        spatial_dims: 2 or 3.
        features: Whether the temperature depends on the context; without, it is class-wise temperature scaling.
        classes: Whether each predicted class has an offset; without both, it is temperature scaling.
        loss: "nll", or "nll+brier" for the sum of both scores.
        sharpen: Whether a pixel may become surer than both the network and temperature scaling make it: better where
            what comes is like what was fitted on, worse where it is not.
        ignore_index: Label, or labels, left out of the fit.
        background: Class left out of the fit but for its pixels near a boundary; None fits on every labelled pixel.
        bounds: Smallest and largest temperature that is applied.
    """

    method = "cts"
    intercept: Float64[Tensor, ""]
    """log T where every feature is at its mean, of a class without offset; NaN until fitted."""
    coefficients: Float64[Tensor, " F"]
    """What a standard deviation of each feature adds to it."""
    class_offsets: Float64[Tensor, " L"]
    feature_mean: Float64[Tensor, " F"]
    feature_scale: Float64[Tensor, " F"]
    floor: Float64[Tensor, ""]
    """The least temperature that is applied; 0 where `sharpen` is set."""

    def __init__(
        self,
        num_classes: int,
        *,
        spatial_dims: int = 2,
        features: bool = True,
        classes: bool = True,
        loss: ContextLoss = "nll",
        sharpen: bool = False,
        ignore_index: IgnoreIndex = None,
        background: int | None = None,
        bounds: tuple[float, float] = (0.05, 100.0),
    ) -> None:
        super().__init__(num_classes, ignore_index=ignore_index, background=background, bounds=bounds)
        if spatial_dims not in (2, 3):
            raise InputError(f"spatial_dims must be 2 or 3, got {spatial_dims}")
        if loss not in get_args(ContextLoss):
            raise InputError(f"loss must be one of {', '.join(get_args(ContextLoss))}, got '{loss}'")
        self.spatial_dims, self.features, self.classes = spatial_dims, bool(features), bool(classes)
        self.context = _CONTEXT if features else 0
        self.loss: ContextLoss = loss
        self.sharpen = bool(sharpen)
        nan = torch.tensor(torch.nan, dtype=torch.float64)
        self.register_buffer("intercept", nan.clone())
        self.register_buffer("floor", nan.clone())
        for name in ("coefficients", "feature_mean", "feature_scale"):
            self.register_buffer(name, nan.repeat(self._many))
        self.register_buffer("class_offsets", nan.repeat(num_classes))

    def fit(self, cases: Iterable[Case], *, validation: Iterable[Case] | None = None) -> Self:
        """Find strengths by cross-validation among the cases, then the numbers; `validation` is not looked at."""
        return self._learn(cases, self._fit_all)

    def fit_roughly(self, cases: Iterable[Case], **_: Any) -> Self:
        """A fit that ends with the sample, which is drawn in one pass, rather than with all pixels."""
        return self._learn(cases, self._fit_sample)

    def _learn(
        self, cases: Iterable[Case], finish: Callable[[Collection[Case], _Seen, Choice, Bounds], _Outcome]
    ) -> Self:
        started = perf_counter()
        kept = reread(cases)
        seen = self._look(kept)
        one = _one_temperature(seen.sample)
        low, high = self.bounds
        floor = 0.0 if self.sharpen else min(1.0, one, high)
        applied = (max(low, floor), high)
        choice, doubts = self._choose(seen, one, applied)
        outcome = self._fit_one(kept) if choice is None else finish(kept, seen, choice, applied)
        strengths = TEMPERATURE_SCALING if choice is None else choice.strengths
        if strengths == TEMPERATURE_SCALING:  # of all pixels, where `one` is of the sample
            floor = min(floor, float(np.exp(outcome.point[0])))
        self.floor.fill_(floor)
        self.intercept.fill_(float(outcome.point[0]))
        self.coefficients.copy_(torch.from_numpy(outcome.point[1 : 1 + self._many]))
        self.class_offsets.copy_(torch.from_numpy(outcome.point[1 + self._many :]))
        self.feature_mean.copy_(torch.from_numpy(seen.mean))
        self.feature_scale.copy_(torch.from_numpy(seen.scale))
        report = FitReport(
            cases=len(kept),
            pixels=seen.pixels,
            nll_before=seen.nll / seen.pixels,
            nll_after=outcome.nll,
            steps=outcome.steps,
            seconds=perf_counter() - started,
            converged=outcome.converged,
            warnings=(*doubts, *outcome.warnings),
            names=seen.names,
            details=account(
                outcome.point,
                seen.sample,
                choice,
                strengths,
                bounds=self.bounds,
                floor=floor,
                raised=outcome.raised,
                standardisation=(seen.mean, seen.scale),
                groups=seen.groups,
            ),
        )
        return self._finish(report)

    def temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        """The temperature of each pixel, within the bounds."""
        self._check(logits)
        if not self.features:
            exponent = self.intercept + self.class_offsets
            of_class = torch.maximum(exponent.exp().clamp(*self.bounds), self.floor)
            return of_class.to(at_least_float32(logits[:0]).dtype)[logits.argmax(dim=1, keepdim=True)]
        if logits.ndim != self.spatial_dims + 2:
            raise InputError(
                f"logits must have shape (B, {self.num_classes}, *S) with {self.spatial_dims} axes in S, "
                f"got {tuple(logits.shape)}; set spatial_dims"
            )
        weights = self.coefficients / self.feature_scale
        intercept = self.intercept - (weights * self.feature_mean).sum()
        return context_temperature(logits, weights, intercept, self.class_offsets, self.bounds, self.floor)

    @property
    def learned(self) -> int:
        """The intercept, and the weights and offsets that it has; the standardisation is a matter of units."""
        return 1 + self._many + (self.num_classes if self.classes else 0)

    @property
    def _many(self) -> int:
        return len(FEATURES) if self.features else 0

    @property
    def _searched(self) -> Bounds:
        """Temperatures among which numbers are sought; those applied may be fewer."""
        low, high = self.bounds
        return min(low, _SEARCHED[0]), max(high, _SEARCHED[1])

    @property
    def _brier(self) -> float:
        return 1.0 if self.loss == "nll+brier" else 0.0

    def _slabs(self, cases: Collection[Case]) -> Iterator[tuple[_Origin, Tensor, Tensor, Tensor]]:
        """Whence it is, logits `[L, N]`, labels `[N]` (-1 where left out) and features `[F, N]` of every slab."""
        for number, case in enumerate(cases):
            origin = _Origin(case.name, number, case.group)
            labels = self.fit_labels(case)[0]
            if labels.ndim != self.spatial_dims:
                raise InputError(
                    f"labels must have {self.spatial_dims} axes, got shape {tuple(labels.shape)} "
                    f"of case '{case.name}'; set spatial_dims={labels.ndim}"
                )
            for slab in slabs_of(case, self.num_classes, context=self.context or 0, device=labels.device):
                rows = slice(slab.rows.start + slab.inner.start, slab.rows.start + slab.inner.stop)
                scores = at_least_float32(slab.logits)  # once, for all that looks at them
                logits, truth = scores[0, :, slab.inner], labels[rows].reshape(-1)
                known = torch.empty(0, truth.numel(), device=truth.device)
                if self.features:
                    with torch.no_grad():
                        known = context_features(scores)[0, :, slab.inner].reshape(len(FEATURES), -1)
                yield origin, logits.reshape(len(logits), -1), truth, known

    def _look(self, cases: Collection[Case]) -> _Seen:
        """One pass: NLL, means and deviations of the features, and a sample in the order of the folds."""
        classes, many = self.num_classes, self._many
        room = min(_SAMPLE, _SAMPLE_LOGITS // classes)
        sampler = Sampler(1, room, rows=classes + many + 2, narrow=True)
        names, groups = dict[str, None](), dict[int, str | None]()
        nll, pixels, moments = 0.0, 0, np.zeros((2, many))
        for origin, logits, labels, known in self._slabs(cases):
            names[origin.name] = None
            part = likelihood(logits, labels, 1.0)
            if not part.pixels:
                continue
            groups[origin.number] = origin.group
            nll, pixels = nll + part.nll, pixels + int(part.pixels)
            truth = labels.cpu().numpy()
            moments += _moments(known.cpu().numpy()[:, truth >= 0])
            extra = torch.from_numpy(np.stack([truth, np.full_like(truth, origin.number)]))
            sampler.add(logits, torch.from_numpy(np.minimum(truth, 0)), known, extra)
        if pixels == 0:
            raise InputError("no labelled pixel to fit on; check ignore_index, background and the labels")
        mean = moments[0] / pixels
        scale = np.sqrt(np.maximum(moments[1] / pixels - mean**2, 0.0))
        scale[scale < 1e-6] = 1.0  # the same everywhere: nothing to learn from
        folds = dict(zip(groups, folds_of(list(groups.values())).tolist(), strict=True))
        sample = _by_fold(sampler.values(), classes, folds, mean, scale)
        count = len({group or number for number, group in groups.items()})
        return _Seen(tuple(names), pixels, nll, mean, scale, sample, count)

    def _choose(self, seen: _Seen, one: float, applied: Bounds) -> tuple[Choice | None, list[str]]:
        """The strengths of the ridges, or None where only one temperature can be fitted, and why."""
        if not (self.features or self.classes):
            return None, []
        low, high = self._searched
        if not low < one < high:
            return None, ["one temperature is all that these scores can have"]  # why is what its own fit says
        if len(seen.sample.edges) == 2:
            return None, [
                "all pixels, or nearly all, belong to one image or group, so that nothing tells how far to trust more "
                "than one temperature; one is used: fit on more images or groups"
            ]
        start = np.zeros(1 + self._many + self.num_classes)
        start[0] = np.log(one)
        pairs = product(_FEATURE_RIDGES if self.features else (np.inf,), _CLASS_RIDGES if self.classes else (np.inf,))
        among = [Strengths(*pair) for pair in pairs]
        return choose_ridge(seen.sample, start, among, self._searched, applied=applied, brier=self._brier), []

    def _fit_one(self, cases: Collection[Case]) -> _Outcome:
        """One temperature for all: temperature scaling itself."""
        settings = {"ignore_index": self.ignore_index, "background": self.background, "bounds": self.bounds}
        plain = TemperatureScaling(self.num_classes, **settings).to(self.fitted.device).fit(cases)  # type: ignore[arg-type]
        report = plain.fit_report_
        point = np.zeros(1 + self._many + self.num_classes)
        point[0] = np.log(report.details["temperature"])
        return _Outcome(point, report.nll_after, report.steps, report.converged, report.warnings)

    def _solve_sample(self, seen: _Seen, choice: Choice) -> tuple[Array, Array, Array]:
        """What is best on the sample, the curvature there, and what squares cost."""
        penalty = choice.strengths.penalty(self._many, self.num_classes)
        # not from T = 1, which may lie outside the bounds, where nothing has a slope
        middle = np.mean(choice.refits, axis=0)
        return *fit_in_memory([seen.sample], middle, penalty, self._searched, brier=self._brier), penalty

    def _fit_sample(self, cases: Collection[Case], seen: _Seen, choice: Choice, applied: Bounds) -> _Outcome:
        """The sample alone."""
        point, sample = self._solve_sample(seen, choice)[0], seen.sample
        sums = loss_sums(sample.logits, sample.labels, sample.features, point, applied, brier=self._brier)
        found = read_loss(sums, point.size)
        return _Outcome(point, found.nll / found.pixels, 0, True, (), raised=found.bounded / found.pixels)

    def _fit_all(self, cases: Collection[Case], seen: _Seen, choice: Choice, applied: Bounds) -> _Outcome:
        """All pixels, from the solution of the sample on and with its curvature as the metric.

        Neither the floor nor narrow bounds have a part in it, because a pixel at them has no slope; they are put around
        what was found.
        """
        if choice.strengths == TEMPERATURE_SCALING:
            return self._fit_one(cases)
        start, curvature, penalty = self._solve_sample(seen, choice)
        free = np.flatnonzero(np.isfinite(penalty))
        cost = penalty[free]
        found: dict[bytes, Loss] = {}

        def objective(chosen: Array) -> tuple[float, Array]:
            point = np.zeros(penalty.size)
            point[free] = chosen
            loss = found[chosen.tobytes()] = self._loss(cases, seen, point, self._searched)
            value = loss.value / loss.pixels + float((cost * chosen**2).sum()) / 2
            return value, loss.gradient[free] / loss.pixels + cost * chosen

        metric = Metric([Block(np.arange(free.size), curvature[np.ix_(free, free)])])
        least = minimise(objective, start[free], metric, evaluations=_PASSES, tolerance=_TOLERANCE)
        point, last = np.zeros(penalty.size), found[least.point.tobytes()]
        point[free] = least.point
        bounded = last if self.bounds == self._searched else self._loss(cases, seen, point, self.bounds)
        shown = bounded if applied == self.bounds else self._loss(cases, seen, point, applied)
        return _Outcome(
            point,
            shown.nll / shown.pixels,
            least.evaluations,
            least.converged,
            tuple(self._warnings(least, bounded)),
            raised=(shown.bounded - bounded.bounded) / shown.pixels,
        )

    def _loss(self, cases: Collection[Case], seen: _Seen, point: Array, bounds: Bounds) -> Loss:
        """Of all pixels at a point for standardised features, which are put into the point rather than computed."""
        many = slice(1, 1 + self._many)
        raw = point.copy()
        raw[many] = point[many] / seen.scale
        raw[0] -= float(raw[many] @ seen.mean)
        rows = (
            loss_sums(logits, labels, known, raw, bounds, brier=self._brier)
            for _, logits, labels, known in self._slabs(cases)
        )
        loss = read_loss(sum(rows, start=np.zeros(1)), point.size)
        loss.gradient[many] = (loss.gradient[many] - seen.mean * loss.gradient[0]) / seen.scale
        return loss

    def _warnings(self, least: Minimum, last: Loss) -> Iterator[str]:
        if last.bounded:
            low, high = self.bounds
            share = last.bounded / last.pixels
            yield f"the temperatures of {share:.2%} of the pixels are cut off at {low:.3g} or {high:.3g}"
        if not least.converged:
            yield f"the search stopped after {least.evaluations} passes before it converged"


class _Origin(NamedTuple):
    name: str
    number: int
    group: str | None


class _Seen(NamedTuple):
    """What the first pass finds."""

    names: tuple[str, ...]
    pixels: int
    nll: float
    mean: Array
    scale: Array
    sample: Pixels
    groups: int


@dataclass(frozen=True)
class _Outcome:
    point: Array
    nll: float
    steps: int
    converged: bool
    warnings: tuple[str, ...]
    raised: float = 0.0
    """Share of the pixels that the floor raises."""


def _one_temperature(sample: Pixels) -> float:
    """That of temperature scaling; 0 or infinity where the scores have none."""
    root = optimal_inverse_temperature(lambda alpha: likelihood(sample.logits, sample.labels, alpha))
    return 1 / root.inverse_temperature if root.inverse_temperature > 0 else np.inf


def _moments(values: Array) -> Array:
    """Sums and sums of squares of rows."""
    wide = values.astype(np.float64)
    return np.stack([wide.sum(axis=1), np.einsum("fn,fn->f", wide, wide)])


def _by_fold(values: Array, classes: int, folds: dict[int, int], mean: Array, scale: Array) -> Pixels:
    """The sample with the pixels of each fold side by side, and its features standardised.

    A fold of which nothing was drawn, since its images have very few pixels, is none.
    """
    planned = np.array([folds.get(k, 0) for k in range(max(folds) + 1)])[values[-1].astype(np.int64)]
    fold = np.unique(planned, return_inverse=True)[1]
    order = np.argsort(fold, kind="stable")
    many = slice(classes, classes + len(mean))
    known = (values[many] - mean[:, np.newaxis]) / scale[:, np.newaxis]
    return Pixels(
        torch.from_numpy(np.ascontiguousarray(values[:classes, order])),
        torch.from_numpy(values[-2, order].astype(np.int64)),
        torch.from_numpy(np.ascontiguousarray(known[:, order], dtype=np.float32)),
        (0, *np.cumsum(np.bincount(fold)).tolist()),
    )
