"""Calibrators that divide the logits of each pixel by a temperature, and so keep every label."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Unpack

import torch
from torch import Tensor

from segcal.calibrators.base import CalibratedSlab, Calibrator, FitRegion
from segcal.cases import StreamedCase
from segcal.functional.division import (
    NotFiniteError,
    divided,
    found_nonfinite,
    scaled_logits,
    scaled_probabilities,
    single,
)
from segcal.functional.probability import at_least_float32, keep_labels
from segcal.kernels.constants import LARGEST_TEMPERATURE, LEAST_TEMPERATURE
from segcal.kernels.dispatch import checking_kernels
from segcal.types import Image, InputError, Logits, Passes, Probs, Slab, Temperature


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
