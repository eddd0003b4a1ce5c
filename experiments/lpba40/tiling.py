"""Patches of volumes (appendix "Implementation"): random ones to train on, and tiles of which the centre is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from segcal.training.batches import Batch
from segcal.types import Array, Image, InputError, Logits

PATCH, CENTRE = 72, 40
"""Sides of a patch and of the part of its logits that is kept, in the paper."""
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


class Tile(NamedTuple):
    """One patch of a volume.

    Attributes:
        read: Box of the volume that the network sees.
        kept: Box of the volume that is written.
        inner: The same box as `kept`, relative to `read`.
    """

    read: tuple[slice, ...]
    kept: tuple[slice, ...]
    inner: tuple[slice, ...]


def tiles_of(space: Sequence[int], *, patch: int = PATCH, centre: int = CENTRE) -> Iterator[Tile]:
    """Yield tiles whose kept boxes cover a volume exactly once.

    A patch that would reach beyond the volume is moved inside, so that every network input has the full size `patch`
    along each axis, or that of the axis where it is shorter. An axis no longer than `patch` is one tile.

    >>> [(tile.read[0].start, tile.kept[0].start, tile.kept[0].stop) for tile in tiles_of((100,))]
    [(0, 0, 56), (28, 56, 100)]
    """
    if not 1 <= centre <= patch or (patch - centre) % 2:
        raise InputError(f"centre must be at most patch and differ from it by an even number, got {centre} and {patch}")
    for parts in product(*(_along_axis(length, patch, centre) for length in space)):
        read, kept = zip(*parts, strict=True)
        inner = tuple(slice(k.start - r.start, k.stop - r.start) for r, k in parts)
        yield Tile(read, kept, inner)


def _along_axis(length: int, patch: int, centre: int) -> list[tuple[slice, slice]]:
    """Pairs of what is read and what is kept along one axis."""
    if length <= patch:
        return [(slice(0, length), slice(0, length))]
    margin, pairs, start = (patch - centre) // 2, list[tuple[slice, slice]](), 0
    while start < length:
        first = min(max(start - margin, 0), length - patch)
        # at the end of the volume there is nothing left to see, so the margin is kept as well
        last = first == length - patch and start + centre + margin >= length
        stop = length if last else min(first + margin + centre, length)
        pairs.append((slice(first, first + patch), slice(start, stop)))
        start = stop
    return pairs


def predict_tiled(
    network: Callable[[Image], Logits],
    image: Array,
    out: Array,
    *,
    patch: int = PATCH,
    centre: int = CENTRE,
    device: torch.device | str = "cpu",
) -> None:
    """Write the logits `[L, *S]` of an image `[C, *S]` into `out`, which may be a memory-mapped array on disk.

    Only one patch is in memory at a time, so neither a large volume nor many classes exhaust it.

    Args:
        network: Maps `[B, C, *S]` to `[B, L, *S]`; switch it to evaluation mode first.
        image: What the network sees; arrays on disk are read patch by patch.
        out: Where the logits go, in its own dtype.
        patch: Side of the patches.
        centre: Side of the part of each patch that is kept.
        device: Where the network is.
    """
    if tuple(out.shape[1:]) != tuple(image.shape[1:]):
        raise InputError(f"out must have shape (L, {', '.join(map(str, image.shape[1:]))}), got {tuple(out.shape)}")
    for tile in tiles_of(image.shape[1:], patch=patch, centre=centre):
        own = torch.as_tensor(np.array(image[(slice(None), *tile.read)]))
        with torch.inference_mode():
            logits = network(own[None].to(device))[0].float().cpu().numpy()
        out[(slice(None), *tile.kept)] = logits[(slice(None), *tile.inner)]
