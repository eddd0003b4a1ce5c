"""Ensemble temperature scaling (Zhang et al. 2020): scaled, raw and uniform probabilities, mixed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias, Unpack, get_args

import numpy as np
import torch
from jaxtyping import Float64
from scipy.optimize import minimize_scalar
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
Slabs: TypeAlias = Iterable[tuple[Tensor, Tensor]]
"""Logits `[L, N]` and labels `[N]`, a part of the pixels at a time."""

_STEPS = 50
_TOLERANCE = 1e-14  # of the mean NLL that a step still promises
_BOUNDS = (0.05, 100.0)  # of the temperature of least squared error, as of that of least NLL
_PRECISION = 1e-6  # of its logarithm
_TRIED = 32  # on a sample, before the search
_THIRDS = np.full(3, 1 / 3)


class EnsembleTemperatureScaling(Calibrator):
    """`w1 softmax(z / T) + w2 softmax(z) + w3 / L`, with nonnegative weights that sum to 1 (3 free parameters).

    The temperature is the one with which `softmax(z / T)` alone has the least loss; the weights are then those of least
    loss, which is convex in them. For the cross-entropy, the temperature is that of temperature scaling, and each pass
    makes a Newton step on the simplex, from the weights of a sample on; two to four are usual. For the squared error,
    the temperature is searched around the best of a sample, from 0.05 to 100, with a pass for each value that is tried,
    about ten in all; the weights follow from the sums of one pass. Labels stay; the result are log-probabilities, of
    which none is below that of the smallest number.

    Args:
        num_classes: L.
        loss: What the temperature and the weights minimise: "cross_entropy", as in the released scripts of the paper,
            or "squared_error", as in the code that it cites.
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
        sample = sampler.sample()
        temperature, passes, settled, warnings = self._scaled(stream, sample)
        weights, found, steps, converged = self._solve(stream, sample, 1 / temperature)
        self.temperature.fill_(temperature)
        self.weights.copy_(torch.from_numpy(weights))
        return Learned(
            pixels=seen.pixels,
            nll_before=seen.nll,
            nll_after=found.nll / seen.pixels,
            steps=passes + steps,
            converged=converged and settled,
            warnings=(*seen.doubts(3, by_class=False), *warnings),
            details={
                "temperature": temperature,
                "weights": dict(zip(("scaled", "raw", "uniform"), weights.tolist(), strict=True)),
            },
        )

    def _map(self, logits: Logits, image: Image | None = None) -> Logits:
        return mixed_logits(logits, self.temperature, self.weights)

    def _summary(self) -> dict[str, object]:
        return {"temperature": float(self.temperature), "weights": [round(w, 4) for w in self.weights.tolist()]}

    def _scaled(self, stream: CaseStream, sample: Sample) -> tuple[float, int, bool, tuple[str, ...]]:
        """Return the temperature of least loss, the passes over the cases, whether they converged, and warnings."""
        if self.loss == "cross_entropy":
            learned = TemperatureScaling(self.num_classes)._learn(stream)
            return learned.details["temperature"], learned.steps, learned.converged, learned.warnings

        def squared_error(slabs: Slabs, importance: Tensor, log_temperature: float) -> float:
            sums = self._sums(slabs, importance, float(np.exp(-log_temperature)), _THIRDS)
            return float(sums.gram[0, 0] - 2 * sums.truth[0])  # and 1 for each pixel, which does not change

        grid = np.log(np.geomspace(*_BOUNDS, _TRIED))  # it need not be convex
        best = int(np.argmin([squared_error([sample[:2]], sample.importance, at) for at in grid]))
        found = minimize_scalar(
            lambda at: squared_error(pixels_of(stream), self._everyone, at),
            bounds=(grid[max(best - 1, 0)], grid[min(best + 1, _TRIED - 1)]),
            method="bounded",
            options={"xatol": _PRECISION},
        )
        temperature = float(np.exp(found.x))
        doubts = () if 0 < best < _TRIED - 1 else (f"the optimum is out of bounds, {temperature:.6g} is used",)
        return temperature, int(found.nfev), bool(found.success), doubts

    def _solve(self, stream: CaseStream, sample: Sample, alpha: float) -> tuple[Array, Mixture, int, bool]:
        """Return the weights of least loss, the sums there, the passes over the cases, and whether they converged."""

        def at(weights: Array) -> Mixture:
            return self._sums(pixels_of(stream), self._everyone, alpha, weights)

        def of_sample(weights: Array) -> Mixture:
            return self._sums([sample[:2]], sample.importance, alpha, weights)

        if self.loss == "squared_error":
            sums = at(_THIRDS)
            weights = least_on_simplex(sums.gram, -sums.truth)
            return weights, at(weights), 1, True
        start, *_ = _least_nll(of_sample, _THIRDS)
        return _least_nll(at, start)

    @property
    def _everyone(self) -> Float64[Tensor, " L"]:
        """Number of times that a pixel of each class counts: once."""
        return torch.ones(self.num_classes, dtype=torch.float64)

    def _sums(self, slabs: Slabs, importance: Tensor, alpha: float, weights: Array) -> Mixture:
        """Return the sums of the mixture over pixels; see `read_mixture`."""
        mixed = (mixture_sums(z, y, importance, alpha, torch.from_numpy(weights)).numpy() for z, y in slabs)
        return read_mixture(sum(mixed, np.zeros(19)), self.num_classes)


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
