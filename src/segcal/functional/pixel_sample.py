"""A small share of the pixels of a stream, drawn by class: rare classes whole, frequent ones thinned and weighted.

With one class for all pixels it is a plain draw, to which each image gives as many as it is large.

Each pixel has a level, drawn from its position in the stream: half of all pixels have level 0, a quarter level 1 and so
on. A class that outgrows its room loses its lowest level, so that what is kept is a fair draw at any time, and depends
neither on how the stream was cut into pieces nor on other classes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from segcal.kernels.cpu.compiling import compiled
from segcal.types import Array

_LEVELS = 48
_PIXELS = 1 << 15
"""How many pixels are kept at most, of all classes."""


class Sample(NamedTuple):
    """Pixels in the order of their classes, of which `starts[c]` is the first of class c.

    A pixel of class c stands for `importance[c]` of the stream.
    """

    logits: Float64[Tensor, "L N"]
    labels: Int64[Tensor, " N"]
    importance: Float64[Tensor, " L"]
    starts: Int64[Tensor, " L_and_one"]


class Sampler:
    """Draws from images that are shown one after the other; of each pixel `rows` numbers are kept, or its logits."""

    def __init__(
        self, num_classes: int, pixels: int = _PIXELS, *, rows: int | None = None, narrow: bool = False
    ) -> None:
        self._room = max(2, pixels // num_classes)
        self._counts = np.zeros((num_classes, _LEVELS), np.int64)
        self._seen = self._size = 0
        # in one piece from the start: small pieces, kept among images that come and go, would leave holes between them
        room = 2 * self._room * num_classes
        self._levels, self._labels = np.empty(room, np.uint8), np.empty(room, np.int64)
        self._values = np.zeros((num_classes if rows is None else rows, room), np.float32 if narrow else np.float64)

    def add(self, values: Float[Tensor, "R *S"], labels: Int64[Tensor, "*S"], *more: Shaped[Tensor, "_ *S"]) -> None:
        """Show an image, or a part of one; pixels with a negative label are passed over."""
        truth = labels.reshape(-1).cpu().numpy()
        levels = np.empty(truth.shape, np.uint8)
        _draw(truth, self._seen, levels, self._counts)
        self._seen += truth.size
        index = np.flatnonzero((truth >= 0) & (levels >= self._least()[truth]))
        if self._size + index.size > self._labels.size:
            self._thin()
        place = slice(self._size, self._size + index.size)
        self._levels[place], self._labels[place] = levels[index], truth[index]
        row = 0
        for part in (values, *more):
            self._values[row : row + len(part), place] = _taken(part.reshape(len(part), truth.size), index)
            row += len(part)
        self._size += index.size

    def values(self) -> Array:
        """The numbers `[R, N]` of the pixels that are kept, in the order in which they were shown."""
        self._thin()
        return self._values[:, : self._size]

    def sample(self) -> Sample:
        """What is kept of all that was shown, by class."""
        logits = self.values()
        truth = self._labels[: self._size]
        order = np.argsort(truth, kind="stable")
        kept, seen = np.bincount(truth, minlength=len(self._counts)), self._counts.sum(axis=1)
        return Sample(
            torch.from_numpy(np.ascontiguousarray(logits[:, order])),
            torch.from_numpy(truth[order]),
            torch.from_numpy(seen / np.maximum(kept, 1)),
            torch.from_numpy(np.concatenate([[0], np.cumsum(kept)])),
        )

    def _least(self) -> Array:
        """The lowest level of each class for which there is room."""
        above = self._counts[:, ::-1].cumsum(axis=1)[:, ::-1]
        return (above > self._room).sum(axis=1)  # type: ignore[no-any-return]

    def _thin(self) -> None:
        """Drop what there is no more room for; the rest of each class then has room for all of its next image."""
        stays = np.flatnonzero(self._levels[: self._size] >= self._least()[self._labels[: self._size]])
        self._levels[: stays.size], self._labels[: stays.size] = self._levels[stays], self._labels[stays]
        self._values[:, : stays.size] = self._values[:, stays]
        self._size = stays.size


def _taken(values: Tensor, index: Array) -> Array:
    """Some columns, in float64; by numpy where it can, since PyTorch's threads spin after each small operation."""
    if values.device.type == "cpu" and values.dtype != torch.bfloat16:
        return values.numpy().take(index, axis=1).astype(np.float64)
    return values[:, torch.from_numpy(index).to(values.device)].double().cpu().numpy()


@compiled
def _draw(labels: Array, first: int, levels: Array, counts: Array) -> None:
    """The level of each pixel from the bits of its hashed position, and the counts of each class."""
    for i in range(labels.shape[0]):
        # splitmix64, so that the draw has no period that the rows of an image could share
        h = np.uint64(first + i + 1) * np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        h = h ^ (h >> np.uint64(31))
        level = 0
        while h & np.uint64(1) and level < _LEVELS - 1:
            h = h >> np.uint64(1)
            level += 1
        levels[i] = level
        if labels[i] >= 0:
            counts[labels[i], level] += 1
