"""Ensemble temperature scaling (Zhang et al. 2020): scaled, raw and uniform probabilities, mixed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from time import perf_counter
from typing import Literal, Self, get_args

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from segcal.calibrators.base import Calibrator, FitReport
from segcal.calibrators.shared.sampler import Sampler
from segcal.calibrators.shared.streaming import pixels_of, survey
from segcal.calibrators.temperature import TemperatureScaling
from segcal.cases import reread
from segcal.functional.pixel_sample import Sample
from segcal.functional.scaling import Mixture, least_on_simplex, mixed_logits, mixture, read_mixture
from segcal.types import Array, Case, IgnoreIndex, Image, InputError, Logits

Loss = Literal["cross_entropy", "squared_error"]

_STEPS = 50
_TOLERANCE = 1e-14  # of the mean NLL that a step still promises


class EnsembleTemperatureScaling(Calibrator):
    """`w1 softmax(z / T) + w2 softmax(z) + w3 / L`, with weights that are not negative and sum to 1 (3 free numbers).

    The temperature is that of temperature scaling; the weights are then those of least loss, which is convex in them.
    For the squared error they follow from sums of one pass. For the cross-entropy each pass makes a Newton step on the
    simplex, from the weights of a sample on; two to four are usual. Labels stay; the result are log-probabilities, of
    which none is below that of the smallest number.

    Args:
        num_classes: L.
        loss: What the weights minimise: "cross_entropy" or "squared_error".
        ignore_index: Label, or labels, left out of the fit.
        background: Class left out of the fit except near boundaries; None fits on every labelled pixel.
    """

    method = "ets"
    preserves_labels = True

    temperature: Float64[Tensor, ""]
    """Of the scaled part; NaN until fitted."""
    weights: Float64[Tensor, "3"]
    """Of the scaled, the raw and the uniform part."""

    def __init__(
        self,
        num_classes: int,
        *,
        loss: Loss = "cross_entropy",
        ignore_index: IgnoreIndex = None,
        background: int | None = None,
    ) -> None:
        super().__init__(num_classes, ignore_index=ignore_index, background=background)
        if loss not in get_args(Loss):
            raise InputError(f"loss must be one of {', '.join(get_args(Loss))}, got '{loss}'")
        self.loss: Loss = loss
        self.register_buffer("temperature", torch.tensor(torch.nan, dtype=torch.float64))
        self.register_buffer("weights", torch.full((3,), torch.nan, dtype=torch.float64))

    def fit(self, cases: Iterable[Case], *, validation: Iterable[Case] | None = None) -> Self:
        """Find temperature and weights on the cases; with three numbers there is nothing to validate."""
        started = perf_counter()
        kept, sampler = reread(cases), Sampler(self.num_classes)
        seen = survey(self, kept, sampler)
        scaling = TemperatureScaling(self.num_classes, ignore_index=self.ignore_index, background=self.background)
        scaling.to(self.fitted.device).fit(kept)
        temperature = scaling.fit_report_.details["temperature"]
        at = self._sums_over(kept, 1 / temperature)
        weights, steps, converged = self._solve(at, sampler.sample(), 1 / temperature)
        after = at(weights).nll / seen.pixels
        self.temperature.fill_(temperature)
        self.weights.copy_(torch.from_numpy(weights))
        unfinished = () if converged else ("the search for the weights stopped before it converged",)
        report = FitReport(
            cases=seen.cases,
            pixels=seen.pixels,
            nll_before=seen.nll,
            nll_after=after,
            steps=scaling.fit_report_.steps + steps,
            seconds=perf_counter() - started,
            converged=converged and scaling.fit_report_.converged,
            warnings=(*seen.doubts(3), *scaling.fit_report_.warnings, *unfinished),
            names=seen.names,
            details={
                "temperature": temperature,
                "weights": dict(zip(("scaled", "raw", "uniform"), weights.tolist(), strict=True)),
            },
        )
        return self._finish(report)

    def calibrate(self, logits: Logits, image: Image | None = None) -> Logits:
        """Logarithms of the mixed probabilities."""
        return mixed_logits(logits, self.temperature, self.weights)

    def _main_numbers(self) -> dict[str, object]:
        return {"temperature": float(self.temperature), "weights": [round(w, 4) for w in self.weights.tolist()]}

    def _solve(self, at: Callable[[Array], Mixture], sample: Sample, alpha: float) -> tuple[Array, int, bool]:
        """Weights of least loss, the passes over the cases that they took, and whether they are final."""
        thirds = np.full(3, 1 / 3)
        if self.loss == "squared_error":
            sums = at(thirds)
            return least_on_simplex(sums.gram, -sums.truth), 1, True

        def of_sample(weights: Array) -> Mixture:
            own = mixture(sample.logits, sample.labels, sample.importance, alpha, torch.from_numpy(weights))
            return read_mixture(own, self.num_classes)

        start, _, _ = _least_nll(of_sample, thirds)
        return _least_nll(at, start)

    def _sums_over(self, cases: Collection[Case], alpha: float) -> Callable[[Array], Mixture]:
        """The sums over all cases for any weights; the latest are kept."""
        everyone = torch.ones(self.num_classes, dtype=torch.float64)
        latest: dict[bytes, Mixture] = {}

        def at(weights: Array) -> Mixture:
            key = weights.tobytes()
            if key not in latest:
                parts = (
                    mixture(logits, labels, everyone, alpha, torch.from_numpy(weights))
                    for _, logits, labels in pixels_of(self, cases)
                )
                latest[key] = read_mixture(sum(parts, np.zeros(19)), self.num_classes)
            return latest[key]

        return at


def _least_nll(at: Callable[[Array], Mixture], start: Array) -> tuple[Array, int, bool]:
    """Newton steps on the simplex, halved until the NLL falls: weights, evaluations and whether they converged."""
    here, found, evaluations = start, at(start), 1
    pixels = -float(found.gradient @ here)  # the NLL of a multiple of the weights is less by the logarithm of it
    while evaluations < _STEPS:
        target = least_on_simplex(found.curvature, found.gradient - found.curvature @ here)
        promised = -float(found.gradient @ (target - here)) / pixels
        if promised <= _TOLERANCE:
            return here, evaluations, True
        share = 1.0
        following = at(target)
        evaluations += 1
        # a weight of 0 may leave a pixel without any probability: the NLL is then huge, and the step is cut
        while not following.nll <= found.nll - 1e-4 * share * promised * pixels and evaluations < _STEPS:
            if share * promised <= _TOLERANCE:
                return here, evaluations, True
            share /= 2
            following = at(here + share * (target - here))
            evaluations += 1
        here, found = here + share * (target - here), following
    return here, evaluations, False
