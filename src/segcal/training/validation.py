"""The held-out samples on which the best weights are chosen."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from segcal.training.batches import SampleList, Source, as_source, to_device, whole


class Validation:
    """Samples that are measured whole, one at a time, never cropped, flipped or augmented.

    A subclass may measure a sample in parts, for samples that should not be read into memory as a whole.
    """

    def __init__(self, source: Source | SampleList) -> None:
        self.source = as_source(source)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.source)

    def losses(self, objective: nn.Module, index: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the sum of the losses of one sample and their number."""
        loss, weight = objective(*to_device([self.source.read(index, whole(1))], device))
        return loss, weight
