"""Temperature scaling (Sec. 3.3): one number divides every logit of every image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import torch
from jaxtyping import Float64
from torch import Tensor

from segcal.calibrators.report import Learned
from segcal.calibrators.shared.survey import summed_likelihood
from segcal.calibrators.tempered import FitLimits, TemperatureCalibrator
from segcal.cases import CaseStream
from segcal.functional.probability import at_least_float32_dtype
from segcal.functional.temperature import Likelihood, likelihood, optimal_inverse_temperature
from segcal.types import Image, Logits, Temperature

_NEAR = 1e-6
"""Relative distance at which two derivatives describe the NLL to the last digit."""


class TemperatureScaling(TemperatureCalibrator):
    """Divide all logits by the temperature with the lowest NLL (Eq. 3.3).

    The NLL is convex in the inverse temperature, so its slope has one root (Theorem 1) and there is no step size to
    tune. Each step of the root finder goes through the cases once and sums in float64; from the optimum of a few
    pixels on, three or four steps are usual.

    Args:
        num_classes: L.
        limits: `ignore_index`, `background` and `bounds`, as of every `TemperatureCalibrator`.
    """

    method = "ts"

    inverse_temperature: Float64[Tensor, ""]
    """The exact optimum, NaN until fitted: 0 for scores no better than chance, infinite if every pixel is right."""

    def __init__(self, num_classes: int, **limits: Unpack[FitLimits]) -> None:
        super().__init__(num_classes, **limits)
        self._register_learned(inverse_temperature=())

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None = None, settings: Any = None) -> Learned:
        """Find the temperature of least NLL; one number cannot overfit, so nothing is validated."""
        sample, found = list[tuple[Tensor, Tensor]](), dict[float, Likelihood]()

        def at(alpha: float) -> Likelihood:
            found[alpha] = summed_likelihood(stream, alpha, None if found else sample)
            return found[alpha]

        root = optimal_inverse_temperature(at, lambda: _of_sample(sample))
        self.inverse_temperature.fill_(root.inverse_temperature)
        before, applied = found[1.0], 1 / self._bounded()
        nearest = min(found, key=lambda alpha: abs(alpha - applied))
        if abs(nearest - applied) > _NEAR * applied:
            nearest = applied
            at(applied)
        return Learned(
            pixels=int(before.pixels),
            nll_before=before.nll / before.pixels,
            nll_after=found[nearest].nll_near(applied - nearest) / before.pixels,
            steps=root.steps,
            converged=root.converged,
            warnings=tuple(self._doubts()),
            details={"temperature": self._bounded()},
        )

    def _temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        found = self._within_bounds().to(at_least_float32_dtype(logits.dtype))
        return found.expand(logits.shape[0], 1, *logits.shape[2:])

    def _refuses(self, logits: Logits, image: Image | None) -> bool:
        return True  # the logits are not read

    def _summary(self) -> dict[str, object]:
        return {"temperature": self._bounded()}

    def _bounded(self) -> float:
        return float(self._within_bounds())

    def _within_bounds(self) -> Float64[Tensor, ""]:
        return (1 / self.inverse_temperature).clamp(*self.bounds)

    def _doubts(self) -> Iterator[str]:
        alpha, (low, high) = float(self.inverse_temperature), self.bounds
        if alpha == 0:
            yield f"the scores are no better than chance: the optimum is an infinite temperature, {high} is used"
        elif alpha == float("inf"):
            yield f"every pixel is predicted right: the optimum is a temperature of 0, {low} is used"
        elif not low <= 1 / alpha <= high:
            yield f"the optimum {1 / alpha:.6g} is out of bounds, {self._bounded():.6g} is used"


def _of_sample(sample: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Return the inverse temperature of least NLL of a few pixels; 1 where they have none."""
    logits, labels = (torch.cat(parts, dim=-1) for parts in zip(*sample, strict=True))
    root = optimal_inverse_temperature(lambda alpha: likelihood(logits, labels, alpha)).inverse_temperature
    return root if 0 < root < float("inf") else 1.0
