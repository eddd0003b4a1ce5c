"""Attended temperature scaling (Mozafari et al. 2018): wrong classes that a pixel nearly belongs to inform, too."""

from __future__ import annotations

from functools import cache
from typing import Any, Unpack

import torch
from torch import Tensor

from segcal.calibrators.report import Learned
from segcal.calibrators.shared.survey import pixels_of, summed_likelihood, survey
from segcal.calibrators.temperature import TemperatureScaling
from segcal.calibrators.tempered import FitLimits
from segcal.cases import CaseStream
from segcal.functional.scaling import attended_sums
from segcal.functional.temperature import Likelihood, optimal_inverse_temperature
from segcal.types import InputError


class AttendedTemperatureScaling(TemperatureScaling):
    """Divide all logits by the temperature with the lowest attended loss.

    Class k has as its samples the pixels labelled k, and those of other classes whose raw posterior of k is at least
    `threshold` (its attended samples). By Bayes' rule a pixel that is not of class k stands for one that is with the
    weight `Q(k | x) / (1 - Q(k | x))`, so on it `1 - S_k` is matched instead of `S_k`. With `S = softmax(z / T)` the
    loss is

        sum_k [ sum_{y = k} -log S_k  +  sum_{y != k, softmax(z)_k >= threshold} -log(1 - S_k) ].

    A class that attends to a pixel has its own binary, proper score there, so that wrong pixels, which are few where a
    network is accurate, count more than once. A class that does not attend has only the half of one, which draws the
    temperature up: on calibrated pixels of 3 classes T is 1.00 with a threshold of 0.01, 1.07 with 0.05 and 1.44 with
    0.3. The loss is not convex for every data set: the root finder then finds a local minimum. The NLL in the report
    may have risen.

    Args:
        num_classes: L.
        threshold: Lowest probability at which a class also counts pixels of another class.
        limits: `ignore_index`, `background` and `bounds`, as of every `TemperatureCalibrator`.
    """

    method = "ats"

    def __init__(self, num_classes: int, *, threshold: float = 0.01, **limits: Unpack[FitLimits]) -> None:
        super().__init__(num_classes, **limits)
        if not 0 < threshold <= 1:
            raise InputError(f"threshold must be above 0 and at most 1, got {threshold}")
        self.threshold = float(threshold)

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None = None, settings: Any = None) -> Learned:
        """Find the temperature of least attended loss; one number cannot overfit, so nothing is validated."""
        seen = survey(stream)
        sums = cache(lambda alpha: self._attended(stream, alpha))
        root = optimal_inverse_temperature(lambda alpha: Likelihood(*sums(alpha)[:6].tolist()))
        self.inverse_temperature.fill_(root.inverse_temperature)
        return Learned(
            pixels=seen.pixels,
            nll_before=seen.nll,
            nll_after=summed_likelihood(stream, 1 / self._bounded()).nll / seen.pixels,
            steps=root.steps,
            converged=root.converged,
            warnings=(*seen.doubts(1), *self._doubts()),
            details={"temperature": self._bounded(), "attended": int(sums(1.0)[6])},
        )

    def _attended(self, stream: CaseStream, alpha: float) -> Tensor:
        parts = (attended_sums(z, labels, self.threshold, alpha) for z, labels in pixels_of(stream))
        return sum(parts, torch.zeros(7, dtype=torch.float64))
