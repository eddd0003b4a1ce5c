"""Image-based temperature scaling (Sec. 3.3): one temperature per image, the mean of what the tree finds in it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace

import torch

from segcal.calibrators.local import LocalTemperatureScaling
from segcal.calibrators.shared.tree import CONTEXT
from segcal.calibrators.shared.verdict import TemperatureRange
from segcal.cases import Slab, slabs_of
from segcal.functional.pixels import image_sums
from segcal.functional.probability import at_least_float32
from segcal.types import Case, Image, Logits, Temperature


class ImageTemperatureScaling(LocalTemperatureScaling):
    """Divide the logits of each image by the mean of the temperatures that the tree finds in it."""

    method = "ibts"
    context = None

    def unchecked_temperature(self, logits: Logits, image: Image | None) -> Temperature:
        """Return the temperature of the image at each pixel, whether fitted or not."""
        factor = self._factor(logits, image)
        mean = image_sums(factor) / math.prod(factor.shape[1:])
        return self._applied(mean.to(factor.dtype).view(-1, *[1] * (factor.ndim - 1))).expand_as(factor)

    def unchecked_slabs(self, case: Case) -> Iterator[tuple[Slab, Temperature]]:
        """Yield the temperature of the image slab by slab: one pass for the mean, one to apply it."""
        found = self._mean_factor(case)
        for slab in slabs_of(case, self.num_classes, device=self.fitted.device):
            mean = at_least_float32(slab.logits[:, :1]).new_full((1, 1, *(1 for _ in slab.logits.shape[2:])), found)
            yield slab, self._applied(mean).expand(1, 1, *slab.logits.shape[2:])

    def _mean_factor(self, case: Case) -> float:
        """Return what the base temperature is multiplied by in the whole image."""
        total, pixels = 0.0, 0
        for slab in slabs_of(case, self.num_classes, context=CONTEXT, device=self.fitted.device):
            with torch.no_grad():
                inner = self._factor(slab.logits, self._image(slab.logits, slab.image))[:, :, slab.inner]
            total, pixels = total + float(image_sums(inner)), pixels + inner.numel()
        return total / pixels

    def _range(self, cases: Collection[Case]) -> TemperatureRange:
        """Return the smallest and largest temperature of an image; the range of its pixels is never applied."""
        found = [float(self.base_temperature) * self._mean_factor(case) for case in cases]
        return replace(super()._range(cases), low=min(found), high=max(found))
