"""Slabs of a case as a calibrator returns them: `apply`, `evaluate` and portraits read nothing else of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from segcal.functional.division import softmax_of
from segcal.functional.probability import at_least_float32
from segcal.functional.uncertainty import disagreement_of
from segcal.types import Labels, Logits, Probs, Slab, Temperature


class CalibratedSlab:
    """The inner slices of a slab, calibrated; logits and probabilities are computed when they are asked for.

    Args:
        calibrator: Calibrator of the slab.
        slab: Slab as it was read, with its context.
    """

    temperature: Temperature | None = None
    """Temperatures `[1, 1, *S]` of the inner slices, or one per channel; None for methods without one."""

    def __init__(self, calibrator: nn.Module, slab: Slab) -> None:
        self.calibrator, self.slab = calibrator, slab

    @property
    def rows(self) -> slice:
        """Position of the slices in the case."""
        return self.slab.inner_rows

    @property
    def raw(self) -> Logits:
        """Logits before calibration."""
        return self.slab.logits[:, :, self.slab.inner]

    @property
    def labels(self) -> Labels | None:
        """Labels of the slices, -1 at pixels that are left out."""
        return None if self.slab.labels is None else self.slab.labels[:, self.slab.inner]

    def logits(self) -> Logits:
        """Return calibrated logits; those of a case in half precision are float32, so that no metric is rounded."""
        slab = self.slab
        with torch.no_grad():
            passes = None if slab.passes is None else at_least_float32(slab.passes)
            whole: Logits = self.calibrator.forward(at_least_float32(slab.logits), slab.image, passes)
        return whole[:, :, slab.inner]

    def probabilities(self) -> Probs:
        """Return float32 probabilities, the same bits for any number of threads."""
        return softmax_of(self.logits())

    def relative_logits(self) -> Logits:
        """Return calibrated logits, or their differences from the largest where these are more precise."""
        return self.logits()

    def disagreement(self) -> Tensor | None:
        """Return the mutual information of label and pass `[1, 1, *S]`; None without passes."""
        inner, passes = self.slab.inner, self.slab.passes
        return None if passes is None else disagreement_of(self.raw, passes[:, :, :, inner])
