"""Training samples: where they come from, which of them stay in memory, how they are cropped, flipped and stacked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from segcal.types import Array

Sample = tuple[Array | Tensor, ...]
Batch = tuple[Tensor, ...]


class Source(Protocol):
    """Training data: samples whose arrays share their last axes, the space; what is on disk may stay there."""

    def __len__(self) -> int:
        """How many samples there are."""

    def __getitem__(self, index: int) -> Sample:
        """The arrays of one sample."""


class Cache:
    """Samples kept in memory while they fit a budget of bytes; all others are read again each time."""

    def __init__(self, budget: int) -> None:
        self.left = budget

    def wrap(self, source: Source) -> Source:
        """The source, whose samples are kept as far as the budget goes."""
        return CachedSource(source, self)


class CachedSource:
    """A source whose samples are kept while the cache has room."""

    def __init__(self, source: Source, cache: Cache) -> None:
        self.source, self.cache, self.kept = source, cache, dict[int, Sample]()

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.source)

    def __getitem__(self, index: int) -> Sample:
        """The arrays of one sample, from memory where they are kept."""
        if index in self.kept:
            return self.kept[index]
        sample = self.source[index]
        size = sum(int(np.prod(part.shape)) * part.dtype.itemsize for part in sample)
        if size <= self.cache.left:
            sample = tuple(part if isinstance(part, Tensor) else np.array(part) for part in sample)
            self.cache.left -= size
            self.kept[index] = sample
        return sample


def augmented(
    sample: Sample, random: np.random.Generator, *, dims: int, crop: int | None = None, flips: bool = False
) -> Batch:
    """A random crop, randomly flipped, of one sample; read from disk only where it is needed."""
    space = tuple(sample[0].shape[-dims:])
    box: tuple[slice, ...] = (slice(None),) * dims
    if crop is not None:
        starts = [int(random.integers(0, max(length - crop, 0), endpoint=True)) for length in space]
        box = tuple(slice(start, start + crop) for start in starts)
    axes = [axis - dims for axis in range(dims) if flips and random.random() < 0.5]
    parts = [_tensor(_cut(part, box)) for part in sample]
    return tuple(part.flip(axes) if axes else part for part in parts)


def _cut(part: Any, box: tuple[slice, ...]) -> Any:
    """The part of an array that lies in a box of its last axes; arrays on disk are read here only."""
    return part[(..., *box)]


def whole(sample: Sample) -> Batch:
    """A sample as tensors, uncut."""
    return tuple(_tensor(part) for part in sample)


def _tensor(part: Array | Tensor) -> Tensor:
    return part if isinstance(part, Tensor) else torch.from_numpy(np.array(part))


def by_shape(samples: Sequence[Batch]) -> list[list[int]]:
    """The numbers of the samples that can be stacked, together."""
    groups: dict[tuple[torch.Size, ...], list[int]] = {}
    for k, sample in enumerate(samples):
        groups.setdefault(tuple(part.shape for part in sample), []).append(k)
    return list(groups.values())


def to_device(samples: Sequence[Batch], device: torch.device) -> Batch:
    """Samples of equal shape as one batch."""
    return tuple(torch.stack(parts).to(device, non_blocking=True) for parts in zip(*samples, strict=True))
