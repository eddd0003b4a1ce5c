"""Ensemble temperature scaling (Zhang et al. 2020): scaled, raw and uniform probabilities, mixed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, Unpack, get_args

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from segcal.calibrators.base import Calibrator, FitRegion
from segcal.calibrators.report import Learned
from segcal.calibrators.shared.survey import Sampler, pixels_of, survey
from segcal.calibrators.temperature import TemperatureScaling
from segcal.cases import CaseStream
from segcal.functional.draws import Sample
from segcal.functional.scaling import Mixture, least_on_simplex, mixed_logits, mixture_sums, read_mixture
from segcal.types import Array, Image, Logits, check_choice

Loss = Literal["cross_entropy", "squared_error"]

_STEPS = 50
_TOLERANCE = 1e-14  # of the mean NLL that a step still promises


class EnsembleTemperatureScaling(Calibrator):
    """`w1 softmax(z / T) + w2 softmax(z) + w3 / L`, with nonnegative weights that sum to 1 (3 free parameters).

    The temperature is that of temperature scaling; the weights are then those of least loss, which is convex in them.
    For the squared error they follow from sums of one pass. For the cross-entropy each pass makes a Newton step on the
    simplex, from the weights of a sample on; two to four are usual. Labels stay; the result are log-probabilities, of
    which none is below that of the smallest number.

    Args:
        num_classes: L.
        loss: What the weights minimise: "cross_entropy" or "squared_error".
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    method = "ets"
    preserves_labels = True

    temperature: Float64[Tensor, ""]
    """Temperature of the scaled part; NaN until fitted."""
    weights: Float64[Tensor, "3"]
    """Weights of the scaled, the raw and the uniform part."""

    def __init__(self, num_classes: int, *, loss: Loss = "cross_entropy", **region: Unpack[FitRegion]) -> None:
        super().__init__(num_classes, **region)
        check_choice("loss", loss, get_args(Loss))
        self.loss: Loss = loss
        self._register_learned(temperature=(), weights=(3,))

    def _problem(self) -> str | None:
        are_shares = bool((self.weights >= 0).all()) and abs(float(self.weights.sum()) - 1) <= 1e-6
        return None if are_shares else "'weights' must be at least 0 and sum to 1"

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None = None, settings: Any = None) -> Learned:
        """Find temperature and weights; three numbers hardly overfit, so nothing is validated."""
        sampler = Sampler(self.num_classes)
        seen = survey(stream, sampler)
        scaling = TemperatureScaling(self.num_classes)._learn(stream)
        temperature = scaling.details["temperature"]
        weights, found, steps, converged = self._solve(stream, sampler.sample(), 1 / temperature)
        self.temperature.fill_(temperature)
        self.weights.copy_(torch.from_numpy(weights))
        return Learned(
            pixels=seen.pixels,
            nll_before=seen.nll,
            nll_after=found.nll / seen.pixels,
            steps=scaling.steps + steps,
            converged=converged and scaling.converged,
            warnings=(*seen.doubts(3, by_class=False), *scaling.warnings),
            details={
                "temperature": temperature,
                "weights": dict(zip(("scaled", "raw", "uniform"), weights.tolist(), strict=True)),
            },
        )

    def _map(self, logits: Logits, image: Image | None = None) -> Logits:
        return mixed_logits(logits, self.temperature, self.weights)

    def _summary(self) -> dict[str, object]:
        return {"temperature": float(self.temperature), "weights": [round(w, 4) for w in self.weights.tolist()]}

    def _solve(self, stream: CaseStream, sample: Sample, alpha: float) -> tuple[Array, Mixture, int, bool]:
        """Return the weights of least loss, the sums there, the passes over the cases, and whether they converged."""

        def over(
            slabs: Callable[[], Iterable[tuple[Tensor, Tensor]]], importance: Tensor
        ) -> Callable[[Array], Mixture]:
            def at(weights: Array) -> Mixture:
                mixed = (mixture_sums(z, y, importance, alpha, torch.from_numpy(weights)).numpy() for z, y in slabs())
                return read_mixture(sum(mixed, np.zeros(19)), self.num_classes)

            return at

        thirds, everyone = np.full(3, 1 / 3), torch.ones(self.num_classes, dtype=torch.float64)
        at = over(lambda: pixels_of(stream), everyone)
        if self.loss == "squared_error":
            sums = at(thirds)
            weights = least_on_simplex(sums.gram, -sums.truth)
            return weights, at(weights), 1, True
        start, *_ = _least_nll(over(lambda: [(sample.logits, sample.labels)], sample.importance), thirds)
        return _least_nll(at, start)


def _least_nll(at: Callable[[Array], Mixture], start: Array) -> tuple[Array, Mixture, int, bool]:
    """Take Newton steps on the simplex, halved until the NLL falls; return weights, sums, evaluations, convergence."""
    here, found, evaluations = start, at(start), 1
    pixels = -float(found.gradient @ here)  # the NLL of a multiple of the weights is less by the logarithm of it
    while evaluations < _STEPS:
        target = least_on_simplex(found.curvature, found.gradient - found.curvature @ here)
        promised = -float(found.gradient @ (target - here)) / pixels
        if promised <= _TOLERANCE:
            return here, found, evaluations, True
        share = 1.0
        following = at(target)
        evaluations += 1
        # a weight of 0 may leave a pixel without any probability: the NLL is then huge, and the step is cut
        while not following.nll <= found.nll - 1e-4 * share * promised * pixels and evaluations < _STEPS:
            if share * promised <= _TOLERANCE:
                return here, found, evaluations, True
            share /= 2
            following = at(here + share * (target - here))
            evaluations += 1
        here, found = here + share * (target - here), following
    return here, found, evaluations, False
