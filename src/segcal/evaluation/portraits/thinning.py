"""Pixels of a case that a portrait keeps: a regular grid that bounds the size of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from segcal.types import Array

_SIDE = 480
"""Pixels along the longer side of an image."""

_VOXELS = 360_000
"""Voxels of a volume, of which the page shows slices along all three axes."""


@dataclass(frozen=True)
class Thinning:
    """Every so many pixels along each axis."""

    strides: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int]) -> Thinning:
        """The smallest strides that keep an image or a volume within its bounds.

        Examples:
            >>> Thinning.of((360, 960)), Thinning.of((20, 512, 512))
            (Thinning(strides=(2, 2)), Thinning(strides=(1, 4, 4)))
        """
        if len(shape) < 3:
            return cls((-(-max(shape) // _SIDE),) * len(shape))
        strides = [1] * len(shape)
        while (
            np.prod(lengths := [-(-length // stride) for length, stride in zip(shape, strides, strict=True)]) > _VOXELS
        ):
            strides[int(np.argmax(lengths))] += 1  # the axis with the most left can spare them best
        return cls(tuple(strides))

    def kept(self, shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """For each axis, the positions that are kept."""
        return tuple(tuple(range(0, length, stride)) for length, stride in zip(shape, self.strides, strict=True))

    def __call__(self, values: Array) -> Array:
        """Values `[*S, ...]` at the kept pixels."""
        return np.ascontiguousarray(values[tuple(slice(None, None, stride) for stride in self.strides)])
