"""Parts of a portrait, and the pixels of a case that it keeps: a regular grid that bounds the size of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

import numpy as np

from segcal.types import Array

Kind = Literal[
    "image",
    "truth",
    "prediction",
    "region",
    "confidence",
    "temperature",
    "gap",
    "accuracy",
    "optimum",
    "disagreement",
]
LOGARITHMIC = ("temperature", "optimum")

LEVELS = 100
NOTHING = 255
"""A map holds 0..100, from its low to its high value, and 255 where it has no value."""

_SIDE = 480
"""Pixels along the longer side of an image."""

_VOXELS = 360_000
"""Voxels of a volume, of which the page shows slices along all three axes."""


class PixelRegion(IntEnum):
    """Region of a pixel of the layer "region"; ignored pixels hold `NOTHING`."""

    OUTSIDE = 0
    ALL = 1
    BOUNDARY = 2


@dataclass(frozen=True)
class Layer:
    """One picture: bytes `[h, w]` or `[d, h, w]`, with a last axis of 3 for an image in colour.

    A map goes from `low` to `high`: "confidence", "temperature" and "gap" of a method; "accuracy" (of the bin of each
    pixel) and "optimum" (the best temperature around each pixel) of the baseline; "disagreement" (in nats) of the
    passes of the case, where a method uses them. Temperatures have equal steps of their logarithm. "truth" and
    "prediction" hold positions in the portrait's `classes`, "region" a `PixelRegion`. `method` is "" where all methods
    share the layer.
    """

    kind: Kind
    method: str
    values: Array
    low: float = 0.0
    high: float = 1.0

    def numbers(self) -> Array:
        """The map in its own unit, NaN where it has no value."""
        share = np.where(self.values == NOTHING, np.nan, self.values / LEVELS)
        if self.kind in LOGARITHMIC:
            return np.asarray(self.low * (self.high / self.low) ** share)
        return np.asarray(self.low + (self.high - self.low) * share)


Curve: TypeAlias = tuple[tuple[int, int, float], ...]
"""A reliability histogram: pixels, correct pixels and summed confidence of each bin."""


@dataclass(frozen=True)
class Patch:
    """A Local patch: its number among those of the case, first and last pixel along each axis, and its curves."""

    number: int
    start: tuple[int, ...]
    stop: tuple[int, ...]
    curves: Mapping[str, Curve]


@dataclass(frozen=True)
class Portrait:
    """Layers, curves and patches of one case.

    Attributes:
        name: Of the case.
        why: Why it was chosen.
        shape: Of the case, `*S`.
        kept: For each axis, the positions of the pixels that are kept.
        spacing: Size of a pixel along each axis; 1 where it is not known.
        window: Side of the sliding window of the gap maps.
        classes: The classes that occur; the layers of labels hold positions in this list.
        layers: The pictures.
        curves: Reliability of the whole case in the region *All*, by method.
        patches: Up to three: the worst, the middle and the best by the ECE of the baseline.
        boxes: First and last pixel along each axis of every Local patch.
        orientation: Directions of the patient in which the axes count, such as "SAR"; None if they are not known.
        channel: The channel shown, if there are several sigmoid channels; class 1 is this channel.
    """

    name: str
    why: str
    shape: tuple[int, ...]
    kept: tuple[tuple[int, ...], ...]
    spacing: tuple[float, ...]
    window: int
    classes: tuple[int, ...]
    layers: tuple[Layer, ...]
    curves: Mapping[str, Curve]
    patches: tuple[Patch, ...]
    boxes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    orientation: str | None = None
    channel: str = ""

    @property
    def title(self) -> str:
        """Name of the case, and of the channel if there are several."""
        return f"{self.name}, {self.channel}" if self.channel else self.name

    def layer(self, kind: Kind, method: str = "") -> Layer | None:
        """The layer of this kind and method, where there is one."""
        return next((layer for layer in self.layers if (layer.kind, layer.method) == (kind, method)), None)


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
