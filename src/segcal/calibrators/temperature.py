"""Calibrators that divide the logits of each pixel by a temperature, and so keep every label.

The simplest are here: temperature scaling (Sec. 3.3), one number for every logit of every image, and attended
temperature scaling (Mozafari et al. 2018), which also counts the wrong classes that a pixel nearly belongs to.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Unpack

import torch
from jaxtyping import Float64
from torch import Tensor

from segcal.calibrators.base import Calibrator, FitRegion
from segcal.calibrators.report import Learned
from segcal.calibrators.shared.survey import inverse_temperature_of, pixels_of, summed_likelihood, survey
from segcal.calibrators.slabs import CalibratedSlab
from segcal.cases import CaseStream, StreamedCase
from segcal.functional.division import (
    NotFiniteError,
    divided,
    found_nonfinite,
    scaled_logits,
    scaled_probabilities,
    single,
)
from segcal.functional.probability import at_least_float32, at_least_float32_dtype, keep_labels
from segcal.functional.scaling import attended_sums
from segcal.functional.temperature import Likelihood, optimal_inverse_temperature
from segcal.kernels.constants import LARGEST_TEMPERATURE, LEAST_TEMPERATURE
from segcal.kernels.dispatch import checking_kernels
from segcal.types import Image, InputError, Logits, Passes, Probs, Slab, Temperature

_NEAR = 1e-6
"""Relative distance at which two derivatives describe the NLL to the last digit."""


class FitLimits(FitRegion, total=False):
    """Settings of every calibrator with temperatures, as keywords that methods pass on."""

    bounds: tuple[float, float]


class TemperatureCalibrator(Calibrator):
    """A calibrator that divides the logits of each pixel by one positive number, and so keeps every label.

    Args:
        num_classes: L.
        bounds: Smallest and largest temperature that is applied. Far outside the default, float32 cannot tell logits
            apart any more.
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    preserves_labels = True
    has_temperature = True

    def __init__(
        self, num_classes: int, *, bounds: tuple[float, float] = (0.05, 100.0), **region: Unpack[FitRegion]
    ) -> None:
        super().__init__(num_classes, **region)
        if len(bounds) != 2:
            raise InputError(f"bounds must be two numbers, got {tuple(bounds)}")
        low, high = (float(bound) for bound in bounds)
        if not 0 < low <= high < float("inf"):
            raise InputError(f"bounds must be positive, finite and in order, got {tuple(bounds)}")
        if low < LEAST_TEMPERATURE or high > LARGEST_TEMPERATURE:  # float32 can neither hold nor invert them all
            raise InputError(f"bounds must lie in {LEAST_TEMPERATURE:g}..{LARGEST_TEMPERATURE:g}, got {tuple(bounds)}")
        self.bounds = (low, high)

    # what a method writes

    @abstractmethod
    def _temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        """Return the temperature of each pixel, within the bounds: `[B, 1, *S]`."""

    def _case_temperature(self, case: StreamedCase) -> Temperature | None:
        """Return the one temperature of a whole case, `[1, 1, 1...]`, from a pass over its slabs; None for others."""
        return None

    def _refuses(self, logits: Logits, image: Image | None) -> bool:
        """Return whether `_temperature` itself notes logits that are not finite, or does not read them.

        Kernels look for NaN as they read (`functional.division.kernels_check_finite`): a pass for the check alone takes
        as long as the calibration.
        """
        return False

    def _divide(self, logits: Logits, temperature: Temperature) -> Logits:
        """Return finite logits divided by temperatures, in their own precision, with every label kept."""
        return scaled_logits(logits, temperature)

    def _softmax(self, logits: Logits, temperature: Temperature) -> Probs:
        """Return the softmax of `_divide`."""
        return scaled_probabilities(logits, temperature)

    # what a user calls

    def temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        """Return the temperature of each pixel, within the bounds: `[B, 1, *S]`."""
        self._check(logits, image)
        found = self._temperature_of(logits, image)
        if found_nonfinite(logits):
            self._checked(logits, image)  # raises, and says where
        return found

    def forward(self, logits: Logits, image: Image | None = None, passes: Passes | None = None) -> Logits:
        """Return calibrated logits of the same shape and dtype; they are finite, even where a class is impossible."""
        return self._with_finite(logits, image, self._divide)

    def predict_proba(self, logits: Logits, image: Image | None = None, passes: Passes | None = None) -> Probs:
        """Return calibrated probabilities of the same shape and dtype as the logits."""
        return self._with_finite(logits, image, self._softmax)

    # how the base does it

    def _map(self, logits: Logits, image: Image | None = None) -> Logits:
        return divided(logits, self._temperature(logits, image))

    def _temperature_of(self, logits: Logits, image: Image | None) -> Temperature:
        """Return the temperatures of logits that are not checked yet."""
        return self._temperature(logits if self._refuses(logits, image) else self._checked(logits, image), image)

    def _with_finite(
        self, logits: Logits, image: Image | None, divide: Callable[[Logits, Temperature], Tensor]
    ) -> Tensor:
        """Return `divide(logits, temperature)`; if it refuses logits that are not finite, repeat it with finite ones.

        Looking for them beforehand would take another pass over the logits; only where a GPU divides are temperatures
        those of checked logits, because its kernels replace minus infinity and go on. A graph that is compiled or
        exported cannot look, and always replaces them.
        """
        self._check(logits, image)
        if torch.compiler.is_compiling():
            finite = self._checked(logits, image)
            return divide(finite, self._temperature(finite, image))
        try:
            find = self._temperature if checking_kernels(logits) is None else self._temperature_of
            return divide(logits, find(logits, image))
        except NotFiniteError:
            finite = self._checked(logits, image)
            return keep_labels(divide(finite, self._temperature(finite, image)), logits)

    def _calibrate_streamed(self, case: StreamedCase) -> Iterator[CalibratedSlab]:
        whole = self._case_temperature(case)
        for slab in case.slabs(self.context if whole is None else 0):
            self._check_space(slab.logits, slab.image)
            if whole is not None:
                found = whole.expand(1, 1, *slab.logits.shape[2:])
            else:
                with torch.no_grad():  # never around a yield: the mode would leak to the caller
                    found = self._temperature(slab.logits, slab.image)[:, :, slab.inner]
            yield TemperedSlab(self, slab, found)
            del slab, found  # before the next is read


class TemperedSlab(CalibratedSlab):
    """The inner slices of a slab with their temperatures."""

    calibrator: TemperatureCalibrator
    temperature: Temperature

    def __init__(self, calibrator: TemperatureCalibrator, slab: Slab, temperature: Temperature) -> None:
        super().__init__(calibrator, slab)
        self.temperature = temperature

    def logits(self) -> Logits:
        """Return calibrated logits in at least float32."""
        return self.calibrator._divide(at_least_float32(self.raw), self.temperature)

    def relative_logits(self) -> Logits:
        """Return calibrated logits relative to the largest, so that a shift of the logits costs no precision."""
        wide = at_least_float32(self.raw)
        return self.calibrator._divide(wide - wide.amax(dim=1, keepdim=True), self.temperature)

    def probabilities(self) -> Probs:
        """Return float32 probabilities, the same bits for any number of threads."""
        return self.calibrator._softmax(single(self.raw), self.temperature.float())


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
    root = inverse_temperature_of(*(torch.cat(parts, dim=-1) for parts in zip(*sample, strict=True)))
    return root if 0 < root < float("inf") else 1.0


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
            warnings=(*seen.doubts(1, by_class=False), *self._doubts()),
            details={"temperature": self._bounded(), "attended": int(sums(1.0)[6])},
        )

    def _attended(self, stream: CaseStream, alpha: float) -> Tensor:
        parts = (attended_sums(z, labels, self.threshold, alpha) for z, labels in pixels_of(stream))
        return sum(parts, torch.zeros(7, dtype=torch.float64))
