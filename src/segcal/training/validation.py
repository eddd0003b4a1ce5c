"""The held-out samples on which the best weights are chosen."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from segcal.training.batches import Cache, Source, to_device, whole


class Validation:
    """Samples that are measured whole, one at a time, never cropped, flipped or augmented.

    A subclass may measure a sample in parts, for samples that should not be read into memory as a whole.
    """

    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.source)

    def keep_in(self, cache: Cache) -> None:
        """Keep samples in the cache as far as its budget goes."""
        self.source = cache.wrap(self.source)

    def losses(self, objective: nn.Module, index: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the sum of the losses of one sample and their number."""
        loss, weight = objective(*to_device([whole(self.source[index])], device))
        return loss, weight
