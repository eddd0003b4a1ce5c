"""Training samples: how they are read, cropped, flipped and stacked into batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from segcal.functional.arrays import to_tensor
from segcal.types import Array

Sample = tuple[Array | Tensor, ...]
Batch = tuple[Tensor, ...]
Box = tuple[slice, ...]


class SampleList(Protocol):
    """Samples by index, each a tuple of arrays that share their last axes."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int, /) -> Sample:
        """Return one sample."""


class Source:
    """Training samples: tuples of arrays that share their last axes, the space, of which parts are read.

    Arrays on disk are read where they are cropped.
    """

    def __init__(self, samples: SampleList) -> None:
        self.samples = samples

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.samples)

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of the first array of a sample."""
        return tuple(self.samples[index][0].shape)

    def read(self, index: int, box: Box) -> Batch:
        """Return the part of a sample inside a box of its last axes."""
        place: Any = (..., *box)
        return tuple(to_tensor(part[place]) for part in self.samples[index])

    def measure(self, objective: nn.Module, index: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the losses of one sample, read as a whole and never augmented, and their number."""
        loss, weight = objective(*to_device([self.read(index, (slice(None),))], device))
        return loss, weight

    @property
    def is_on_device(self) -> bool:
        """True if every sample is in the memory of a GPU, so that nothing is left to read or copy."""
        if not isinstance(self.samples, list | tuple):  # reading them to find out would take long
            return False
        return all(isinstance(part, Tensor) and part.is_cuda for sample in self.samples for part in sample)


def as_source(samples: Source | SampleList) -> Source:
    """Return tuples of arrays as a source, and a source as it is."""
    return samples if isinstance(samples, Source) else Source(samples)


def augmented(
    source: Source,
    index: int,
    random: np.random.Generator,
    *,
    dims: int,
    crop: int | None = None,
    flips: bool = False,
) -> Batch:
    """Return a random crop of one sample, randomly flipped; only the crop is read."""
    box = (slice(None),) * dims
    if crop is not None:
        space = source.shape(index)[-dims:]
        starts = [int(random.integers(0, max(length - crop, 0), endpoint=True)) for length in space]
        box = tuple(slice(start, start + crop) for start in starts)
    axes = [axis - dims for axis in range(dims) if flips and random.random() < 0.5]
    return tuple(part.flip(axes) if axes else part for part in source.read(index, box))


def by_shape(samples: Sequence[Batch]) -> list[list[int]]:
    """Return the indices of samples that can be stacked, grouped."""
    groups: dict[tuple[torch.Size, ...], list[int]] = {}
    for k, sample in enumerate(samples):
        groups.setdefault(tuple(part.shape for part in sample), []).append(k)
    return list(groups.values())


def to_device(samples: Sequence[Batch], device: torch.device) -> Batch:
    """Return samples of equal shape as one batch on the device."""
    return tuple(_stack(parts, device) for parts in zip(*samples, strict=True))


def _stack(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    if any(part.device.type != "cpu" for part in parts):
        return torch.stack([part.to(device, non_blocking=True) for part in parts])
    stacked = torch.stack(parts)  # type: ignore[arg-type]
    if device.type == "cuda":  # only a copy from pinned memory does not wait for the device
        stacked = stacked.pin_memory()
    return stacked.to(device, non_blocking=True)
