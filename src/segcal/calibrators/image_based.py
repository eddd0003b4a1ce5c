"""Image-based temperature scaling (Sec. 3.3): one temperature per image, the mean of what the tree finds in it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from segcal.calibrators.local import LocalTemperatureScaling
from segcal.calibrators.shared.tree import CONTEXT
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
        total, pixels = 0.0, 0
        for slab in slabs_of(case, self.num_classes, context=CONTEXT, device=self.fitted.device):
            with torch.no_grad():
                inner = self._factor(slab.logits, self._image(slab.logits, slab.image))[:, :, slab.inner]
            total, pixels = total + float(image_sums(inner)), pixels + inner.numel()
        for slab in slabs_of(case, self.num_classes, device=self.fitted.device):
            mean = at_least_float32(slab.logits[:, :1]).new_full(
                (1, 1, *(1 for _ in slab.logits.shape[2:])), total / pixels
            )
            yield slab, self._applied(mean).expand(1, 1, *slab.logits.shape[2:])
