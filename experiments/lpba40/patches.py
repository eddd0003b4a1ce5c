"""Cut random training patches with a least share of foreground (appendix "Implementation": 72^3 and 5 %)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from segcal.training.batches import Batch

FOREGROUND = 0.05
"""Least share of foreground in a training patch, in the paper."""
OUTSIDE = 255
"""Label of the voxels that volumes are padded with."""

_TRIES = 20


class ForegroundPatches:
    """Cut a random patch out of each volume of a batch, with at least a given share of foreground where possible.

    The last array of a batch is the labels: 0 is background and `OUTSIDE` padding. A patch with less foreground is
    drawn again, up to 20 times. An axis that is shorter than a patch is taken whole.

    Args:
        size: Side of a patch.
        share: Least share of foreground.
    """

    def __init__(self, size: int, share: float = FOREGROUND) -> None:
        self.size, self.share = size, share

    def __call__(self, batch: Batch, randoms: Sequence[np.random.Generator], epoch: int) -> Batch:
        """Return the patches of a batch; each volume has its own random numbers."""
        labels = batch[-1]
        if max(labels.shape[-3:]) <= self.size:
            return batch
        boxes = [self._box(own, random) for own, random in zip(labels, randoms, strict=True)]
        return tuple(torch.stack([own[(..., *box)] for own, box in zip(part, boxes, strict=True)]) for part in batch)

    def _box(self, labels: Tensor, random: np.random.Generator) -> tuple[slice, ...]:
        box: tuple[slice, ...] = ()
        for _ in range(_TRIES):
            starts = [
                int(random.integers(0, max(length - self.size, 0), endpoint=True)) for length in labels.shape[-3:]
            ]
            box = tuple(slice(start, start + self.size) for start in starts)
            own = labels.reshape(labels.shape[-3:])[box]
            if float(((own > 0) & (own != OUTSIDE)).float().mean()) >= self.share:
                break
        return box
