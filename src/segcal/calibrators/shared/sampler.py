"""A small share of the pixels of a stream, drawn by class: rare classes whole, frequent ones thinned and weighted.

With one class for all pixels it is a plain draw, to which each image contributes in proportion to its size. See
`functional.pixel_sample` for which pixels are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from segcal.functional.pixel_sample import SAMPLE_LEVELS, Sample, sample_levels
from segcal.types import Array, InputError

_PIXELS = 1 << 15
"""Most pixels that are kept, of all classes together."""
_LARGE = 1e6
"""Logits above which sums of their products may be the reason for an error in float64."""


class Sampler:
    """Draws pixels from images that are shown one after the other, and keeps `rows` numbers of each, or its logits."""

    def __init__(
        self, num_classes: int, pixels: int = _PIXELS, *, rows: int | None = None, narrow: bool = False
    ) -> None:
        self._room = max(2, pixels // num_classes)
        self._counts = np.zeros((num_classes, SAMPLE_LEVELS), np.int64)
        self._seen = self._size = 0
        # in one piece from the start: small pieces, kept among images that come and go, would fragment the memory
        room = 2 * self._room * num_classes
        self._levels, self._labels = np.empty(room, np.uint8), np.empty(room, np.int64)
        self._values = np.zeros((num_classes if rows is None else rows, room), np.float32 if narrow else np.float64)

    def add(self, values: Float[Tensor, "R *S"], labels: Int64[Tensor, "*S"], *more: Shaped[Tensor, "_ *S"]) -> None:
        """Add an image, or a part of one; pixels with a negative label are skipped."""
        flat = labels.reshape(-1).cpu()
        truth, levels = flat.numpy(), sample_levels(flat, self._seen, torch.from_numpy(self._counts)).numpy()
        self._seen += truth.size
        index = np.flatnonzero((truth >= 0) & (levels >= self._least()[truth]))
        if self._size + index.size > self._labels.size:
            self._thin()
        place = slice(self._size, self._size + index.size)
        self._levels[place], self._labels[place] = levels[index], truth[index]
        row, chosen = 0, torch.from_numpy(index)
        for part in (values, *more):
            kept = part.reshape(len(part), truth.size)[:, chosen.to(part.device)].double()
            self._values[row : row + len(part), place] = kept.cpu().numpy()
            row += len(part)
        self._size += index.size

    def values(self) -> Array:
        """Return the numbers `[R, N]` of the pixels that are kept, in the order in which they were added."""
        self._thin()
        return self._values[:, : self._size]

    def sample(self) -> Sample:
        """Return the pixels that are kept, by class."""
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
        """Return the lowest level of each class for which there is room."""
        above = self._counts[:, ::-1].cumsum(axis=1)[:, ::-1]
        return (above > self._room).sum(axis=1)  # type: ignore[no-any-return]

    def _thin(self) -> None:
        """Drop the pixels for which there is no more room."""
        stays = np.flatnonzero(self._levels[: self._size] >= self._least()[self._labels[: self._size]])
        self._levels[: stays.size], self._labels[: stays.size] = self._levels[stays], self._labels[stays]
        self._values[:, : stays.size] = self._values[:, stays]
        self._size = stays.size


@contextmanager
def refusing_large(drawn: Sample, method: str) -> Iterator[None]:
    """Refuse logits whose products are infinite, or so large that penalties are lost next to them, in a fit to them."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
            yield
    except (np.linalg.LinAlgError, ValueError) as error:
        largest = float(drawn.logits.abs().max())
        if isinstance(error, InputError) or largest < _LARGE:
            raise
        raise InputError(
            f"logits of up to {largest:.3g} are too large for '{method}', which adds up their products; divide them by "
            "a constant, or write -inf for a class that is impossible"
        ) from error
