"""Training samples: where they are kept, and how they are cropped, flipped and stacked into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from segcal.files import release_pages
from segcal.files.prefetch import prefetch
from segcal.types import Array

Sample = tuple[Array | Tensor, ...]
Batch = tuple[Tensor, ...]
T = TypeVar("T")
R = TypeVar("R")

_LARGE = 1 << 26
"""Bytes of a memory-mapped array from which on it is left on disk: only its crops are read."""
_DEVICE_SHARE = 0.5
"""Share of the free memory of a GPU that samples may fill; training needs the rest."""


class Source(Protocol):
    """Training samples: arrays that share their last axes, the space. Arrays on disk may stay there."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int) -> Sample:
        """Return the arrays of one sample."""


class Cache:
    """Memory in which samples are kept: that of the GPU first, then pinned or plain host memory.

    Args:
        budget: Bytes of host memory.
        device: Device that trains. On a GPU, samples are kept there while they fit half of its free memory.
    """

    def __init__(self, budget: int, device: torch.device | None = None) -> None:
        self.left, self.device = budget, device or torch.device("cpu")
        self.left_on_device = 0
        if self.device.type == "cuda":
            self.left_on_device = int(_DEVICE_SHARE * torch.cuda.mem_get_info(self.device)[0])

    def wrap(self, source: Source) -> CachedSource:
        """Return the source with its samples kept as far as the budget goes."""
        return CachedSource(source, self)

    def keep(self, sample: Sample) -> Sample | None:
        """Return a copy of a sample that may be kept, or None if there is no room for it."""
        on_disk = [_is_large_map(part) for part in sample]
        sizes = [int(np.prod(part.shape)) * part.dtype.itemsize for part in sample]
        if sum(sizes) <= self.left_on_device:
            self.left_on_device -= sum(sizes)
            return tuple(_tensor(part).to(self.device) for part in sample)
        size = sum(size for size, left in zip(sizes, on_disk, strict=True) if not left)
        if size > self.left:
            return None
        self.left -= size
        return tuple(part if left else self._copy(part) for part, left in zip(sample, on_disk, strict=True))

    def _copy(self, part: Array | Tensor) -> Array | Tensor:
        if isinstance(part, Tensor):
            return part
        return np.array(part) if self.device.type == "cpu" else _tensor(part).pin_memory()


class CachedSource:
    """A source whose samples are kept while the cache has room; all others are read again each time."""

    def __init__(self, source: Source, cache: Cache) -> None:
        self.source, self.cache, self.kept = source, cache, dict[int, Sample]()

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.source)

    def __getitem__(self, index: int) -> Sample:
        """Return the arrays of one sample, from memory if they are kept."""
        if index in self.kept:
            return self.kept[index]
        sample = self.source[index]
        if (kept := self.cache.keep(sample)) is not None:
            self.kept[index] = sample = kept
        return sample

    @property
    def is_on_device(self) -> bool:
        """Whether every sample is kept on the GPU, so that nothing is left to read or copy."""
        samples = self.kept.values()
        on_device = all(isinstance(part, Tensor) and part.is_cuda for sample in samples for part in sample)
        return len(self.kept) == len(self) and on_device


def augmented(
    sample: Sample, random: np.random.Generator, *, dims: int, crop: int | None = None, flips: bool = False
) -> Batch:
    """Return a random crop of one sample, randomly flipped; only the crop is read from disk."""
    space = tuple(sample[0].shape[-dims:])
    box: tuple[slice, ...] = (slice(None),) * dims
    if crop is not None:
        starts = [int(random.integers(0, max(length - crop, 0), endpoint=True)) for length in space]
        box = tuple(slice(start, start + crop) for start in starts)
    axes = [axis - dims for axis in range(dims) if flips and random.random() < 0.5]
    parts = [_tensor(_cut(part, box)) for part in sample]
    return tuple(part.flip(axes) if axes else part for part in parts)


def prefetched(prepare: Callable[[T], R], items: Iterable[T], *, ahead: bool) -> Iterator[R]:
    """Yield `prepare(item)` of each item; with `ahead`, a thread prepares the next while the current one is used."""
    prepared = map(prepare, items)
    return prefetch(prepared) if ahead else prepared


def whole(sample: Sample) -> Batch:
    """Return a sample as tensors, uncropped."""
    return tuple(_tensor(part) for part in sample)


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


def _cut(part: Any, box: tuple[slice, ...]) -> Any:
    """Return the part of an array inside a box of its last axes; arrays on disk are read only here."""
    return part[(..., *box)]


def _tensor(part: Array | Tensor) -> Tensor:
    if isinstance(part, Tensor):
        return part
    copied = torch.from_numpy(np.array(part))
    release_pages(part)
    return copied


def _is_large_map(part: Array | Tensor) -> bool:
    return isinstance(part, np.memmap) and part.nbytes >= _LARGE
