"""Expected pixels per class, in one pass over the logits on the CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.cpu.compiling import BLOCK, as_numpy, compiled, exp_below_zero, largest_logits, over_pixels
from segcal.types import Array

_UNIT = 32 * BLOCK  # pixels summed side by side; fixed, so that sums do not depend on the number of threads


@compiled
def _mass(logits: Array, labels: Array, confidence: Array, partial: Array, start: int, stop: int) -> None:
    top, weight = np.empty(BLOCK, logits.dtype), np.empty(BLOCK)
    lanes = np.empty((logits.shape[0], BLOCK))  # sums side by side, to vectorize
    for first in range(start, stop, _UNIT):
        lanes[:] = 0.0
        for at in range(first, min(first + _UNIT, stop), BLOCK):
            n = min(BLOCK, stop - at)
            largest_logits(logits, at, n, top)
            for i in range(n):  # an ignored pixel weighs nothing
                weight[i] = confidence[at + i] if labels[at + i] >= 0 else 0.0
            for c in range(logits.shape[0]):
                row, lane = logits[c, at : at + n], lanes[c]
                for i in range(n):
                    lane[i] += exp_below_zero(np.float64(row[i]) - np.float64(top[i])) * weight[i]
        for c in range(logits.shape[0]):
            partial[first // _UNIT, c] = lanes[c].sum()


def class_mass(logits: Tensor, labels: Tensor, confidence: Tensor) -> Tensor:
    """Twin of `segcal.functional.random_labels.class_mass`."""
    z = as_numpy(logits.reshape(logits.shape[0], -1))
    partial = np.zeros((-(-z.shape[1] // _UNIT), z.shape[0]))
    fields = (as_numpy(labels.reshape(-1)), as_numpy(confidence))
    over_pixels(_mass, z.shape[1], z, *fields, partial, unit=_UNIT)
    return torch.from_numpy(partial.sum(axis=0))  # numpy sums pairwise
