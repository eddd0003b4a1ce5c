"""Calibration by an affine map of the scores: a convex problem, solved on a sample and finished on all pixels.

`softmax(W x + b)` has a convex NLL in `W` and `b`. A sample drawn by class (`functional.draws`) is solved first,
in memory; its solution is the start, and its curvature the metric, of L-BFGS on gradients summed over all cases.
Five to ten passes over the cases are usual, and no more than one slab of pixels is held at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from segcal.calibrators.base import Calibrator, FitRegion
from segcal.calibrators.report import Learned
from segcal.calibrators.shared.survey import Sampler, pixels_of, refusing_large, survey
from segcal.cases import CaseStream
from segcal.functional.affine import affine_curvature, affine_map, affine_sums
from segcal.functional.draws import Sample
from segcal.functional.minimise import Block, Objective, Preconditioner, minimise
from segcal.functional.temperature import Likelihood, likelihood, optimal_inverse_temperature
from segcal.types import Array, Case, Image, InputError, Logits

_ROUNDS = 3  # of computing the curvature of the sample again
_SAMPLE_EVALUATIONS = 100
_PASSES = 100
_STARTS = (0.05, 20.0)  # smallest and largest inverse temperature to start from
_ANCHOR = 1e-7
"""Penalty on the squared distance of the numbers from the identity, in nats: it makes the answer unique where the data
leave a number free or would send it to infinity (a class that never occurs, pixels that are all right). On other data
it moves the NLL by less than a millionth."""


class AffineCalibrator(Calibrator):
    """A map `W x + b` of the scores of each pixel, of least mean NLL plus penalties.

    Besides those of the method there is a very small penalty on the distance from the identity, which makes the answer
    unique.

    Args:
        num_classes: L.
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    preserves_labels = False
    of_log: ClassVar[bool] = False
    """True if the map is applied to log-probabilities rather than to logits."""
    one_scale: ClassVar[bool] = False
    """True if each class has one scale instead of a row of the matrix."""

    weights: Float64[Tensor, "L K"]
    """`[L, L]`, or `[L, 1]` for one scale for each class; NaN until fitted."""
    bias: Float64[Tensor, " L"]

    def __init__(self, num_classes: int, **region: Unpack[FitRegion]) -> None:
        super().__init__(num_classes, **region)
        self._register_learned(weights=(num_classes, 1 if self.one_scale else num_classes), bias=(num_classes,))

    @abstractmethod
    def _penalties(self) -> tuple[Float64[Tensor, "L K"], Float64[Tensor, " L"]]:
        """Return the penalty on the squared difference of each weight and bias from the identity."""

    @abstractmethod
    def _details(self) -> dict[str, Any]:
        """Return what the report says about the learned map."""

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None = None, settings: Any = None) -> Learned:
        """Find the map of least NLL plus penalties; a convex problem needs no validation."""
        sampler = Sampler(self.num_classes)
        seen = survey(stream, sampler)
        drawn = sampler.sample()
        with refusing_large(drawn, self.method):
            start, metric = self._solve_sample(drawn, seen.pixels)
        everyone = torch.ones(self.num_classes, dtype=torch.float64)
        objective = self._objective(lambda: pixels_of(stream), everyone, seen.pixels)
        found = minimise(objective, start, metric, evaluations=_PASSES)
        found = replace(found, point=self._constrained(found.point))
        weights, bias = self._split(found.point)
        self.weights.copy_(weights)
        self.bias.copy_(bias)
        penalty = float((self._costs() * (found.point - self._identity()) ** 2).sum())
        return Learned(
            pixels=seen.pixels,
            nll_before=seen.nll,
            nll_after=found.value - penalty,
            steps=found.evaluations,
            converged=found.converged,
            warnings=tuple(seen.doubts(found.point.size)),
            details={**self._details(), "penalty": penalty, "gradient": found.slope},
        )

    def _map(self, logits: Logits, image: Image | None = None) -> Logits:
        return affine_map(logits, self.weights, self.bias, of_log=self.of_log)

    def mean_nll(self, cases: Iterable[Case]) -> float:
        """Return the mean NLL of calibrated cases, in nats."""
        self._check_fitted()
        nll, pixels, everyone = 0.0, 0, torch.ones(self.num_classes, dtype=torch.float64)
        for logits, labels in pixels_of(self.stream(cases)):
            nll += float(affine_sums(logits, labels, everyone, self.weights, self.bias, of_log=self.of_log)[0])
            pixels += int((labels >= 0).sum())
        if pixels == 0:
            raise InputError("no labelled pixel to measure; check ignore_index, background and the labels")
        return nll / pixels

    def _solve_sample(self, sample: Sample, pixels: int) -> tuple[Array, Preconditioner]:
        """The solution of a sample that stands for `pixels`, from the best temperature on, and the metric there."""
        objective = self._objective(lambda: iter([(sample.logits, sample.labels)]), sample.importance, pixels)
        alpha = float(np.clip(_inverse_temperature(sample), *_STARTS))
        point = self._start(alpha)
        for _ in range(_ROUNDS):
            found = minimise(objective, point, self._metric(sample, point), evaluations=_SAMPLE_EVALUATIONS)
            point = found.point
            if found.evaluations <= 2:
                break
        return point, self._metric(sample, point)

    def _objective(
        self, slabs: Callable[[], Iterator[tuple[Tensor, Tensor]]], importance: Tensor, pixels: int
    ) -> Objective:
        """Mean NLL plus penalties of what each call of `slabs` goes through."""
        penalty, identity = self._costs(), self._identity()

        def value(point: Array) -> tuple[float, Array]:
            inside = self._constrained(point)
            weights, bias = self._split(inside)
            total = np.zeros(1 + point.size)
            for logits, labels in slabs():
                total += affine_sums(logits, labels, importance, weights, bias, of_log=self.of_log).numpy()
            mean, off, astray = total / pixels, inside - identity, point - inside
            slope = self._constrained(mean[1:] + 2 * penalty * off) + 2 * _ANCHOR * astray
            return float(mean[0] + (penalty * off**2).sum() + _ANCHOR * (astray**2).sum()), slope

        return value

    def _metric(self, sample: Sample, point: Array) -> Preconditioner:
        weights, bias = self._split(self._constrained(point))
        return Preconditioner(
            self._projected(affine_curvature(sample, weights, bias, self._costs(), of_log=self.of_log))
        )

    def _constrained(self, point: Array) -> Array:
        """Return the nearest point that the method allows: an orthogonal projection, by default the point itself."""
        return point

    def _projected(self, blocks: list[Block]) -> list[Block]:
        """Return the curvature along the points that the method allows; whole ones only, since it is but a metric."""
        return blocks

    def _costs(self) -> Array:
        return _joined(*self._penalties()) + _ANCHOR

    def _identity(self) -> Array:
        """The weights and the bias that change nothing."""
        classes, width = self.weights.shape
        weights = torch.ones(classes, 1) if width == 1 else torch.eye(classes)
        return _joined(weights.double(), torch.zeros(classes, dtype=torch.float64))

    def _start(self, alpha: float) -> Array:
        """Return the point to start from, given the inverse temperature of the sample."""
        return alpha * self._identity()

    def _split(self, point: Array) -> tuple[Tensor, Tensor]:
        values = torch.from_numpy(np.array(point))
        size = self.weights.numel()
        return values[:size].view(self.weights.shape), values[size:]


def _joined(weights: Tensor, bias: Tensor) -> Array:
    return np.concatenate([weights.reshape(-1).numpy(), bias.numpy()])


def _inverse_temperature(sample: Sample) -> float:
    """The inverse temperature of least NLL of a sample."""
    bounds = list(pairwise(sample.starts.tolist()))
    classes = [(sample.logits[:, start:stop].contiguous(), sample.labels[start:stop]) for start, stop in bounds]

    def at(alpha: float) -> Likelihood:
        parts = torch.tensor([likelihood(logits, labels, alpha) for logits, labels in classes], dtype=torch.float64)
        return Likelihood(*(sample.importance @ parts).tolist())

    return optimal_inverse_temperature(at).inverse_temperature
