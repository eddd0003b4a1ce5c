"""Image-based temperature scaling (Sec. 3.3): one temperature per image, the mean of what the tree finds in it."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from segcal.calibrators.local import LocalTemperatureScaling
from segcal.calibrators.shared.training_report import TemperatureRange
from segcal.calibrators.shared.tree import CONTEXT
from segcal.cases import CaseStream, StreamedCase
from segcal.functional.pixels import image_sums
from segcal.types import Image, Logits, Temperature


class ImageTemperatureScaling(LocalTemperatureScaling):
    """Divide the logits of each image by the mean of its LTS temperatures."""

    method = "ibts"
    is_local = False

    def _temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        factor = self._factor(logits, image)
        mean = image_sums(factor) / math.prod(factor.shape[1:])
        return self._applied(mean.to(factor.dtype).view(-1, *[1] * (factor.ndim - 1))).expand_as(factor)

    def _case_temperature(self, case: StreamedCase) -> Temperature:
        return self._applied(self._mean_factor(case).view(1, 1, *(1 for _ in case.shape[1:])))

    def _mean_factor(self, case: StreamedCase) -> Float[Tensor, ""]:
        """Return what the base temperature is multiplied by in the whole image."""
        total, pixels = 0.0, 0
        for slab in case.slabs(CONTEXT):
            self._check_space(slab.logits, slab.image)
            with torch.no_grad():
                inner = self._factor(slab.logits, slab.image)[:, :, slab.inner]
            total, pixels = total + float(image_sums(inner)), pixels + inner.numel()
        return inner.new_tensor(total / pixels)

    def _range(self, stream: CaseStream) -> TemperatureRange:
        """Return the smallest and largest temperature of an image; the range of its pixels is never applied."""
        found = [float(self.base_temperature) * float(self._mean_factor(case)) for case in stream]
        return replace(super()._range(stream), low=min(found), high=max(found))
