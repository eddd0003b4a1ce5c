"""Levels of a sample of pixels on the CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.constants import SAMPLE_LEVELS
from segcal.kernels.cpu.compiling import as_numpy, compiled
from segcal.kernels.dispatch import DECLINED
from segcal.types import Array


@compiled
def _draw(labels: Array, first: int, levels: Array, counts: Array) -> None:
    """Compute the level of each pixel from the bits of its hashed position, and the counts of each class."""
    for i in range(labels.shape[0]):
        # splitmix64
        h = np.uint64(first + i + 1) * np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        h = h ^ (h >> np.uint64(31))
        level = 0
        while h & np.uint64(1) and level < SAMPLE_LEVELS - 1:
            h = h >> np.uint64(1)
            level += 1
        levels[i] = level
        if labels[i] >= 0:
            counts[labels[i], level] += 1


def sample_levels(labels: Tensor, first: int, counts: Tensor) -> Tensor:
    """Twin of `segcal.functional.pixel_sample.sample_levels`."""
    levels = np.empty(len(labels), np.uint8)
    _draw(as_numpy(labels), first, levels, counts.numpy())
    return torch.from_numpy(levels)


def columns(values: Tensor, index: Tensor) -> Tensor:
    """Twin of `segcal.functional.pixel_sample.columns`, in numpy on one thread; see `segcal.kernels.cpu` for why."""
    if values.dtype == torch.bfloat16:  # which numpy lacks
        return DECLINED
    return torch.from_numpy(values.numpy().take(index.numpy(), axis=1).astype(np.float64))
