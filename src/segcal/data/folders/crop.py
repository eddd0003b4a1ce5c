"""The part of a volume that nnU-Net predicted.

nnU-Net crops images to their nonzero voxels and, when it puts its probabilities back into the whole image, gives
everything outside of the crop to the background with a probability of exactly 1 (models with regions: every channel
has a probability of exactly 0). Those voxels tell nothing about the network, and millions of certain, right answers
would hide its overconfidence. Cases are therefore cut to the crop, whose faces are edges of the image and no boundaries
of a structure; what is written for them is put back.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from segcal.data.io.base import Write
from segcal.files import release_pages
from segcal.types import Activation, Array

_AT_ONCE = 1 << 23
"""Values outside of a crop that are written at a time."""


class Crop(NamedTuple):
    """Position of a case in its volume.

    Attributes:
        shape: `*S` of the volume.
        box: The case in it.
    """

    shape: tuple[int, ...]
    box: tuple[slice, ...]

    @property
    def is_empty(self) -> bool:
        """True if nothing was predicted."""
        return any(side.start == side.stop for side in self.box)

    def cut(self, values: Array) -> Array:
        """Return the part of values `[..., *S]` of the volume that is the case."""
        index: Any = (..., *self.box)
        found: Array = values[index]
        return found

    def put_back(self, values: Array, *, outside: Any) -> Array:
        """Return a volume with the values `[..., *S]` of the case at its place, and `outside` everywhere else."""
        whole = np.full((*values.shape[: -len(self.shape)], *self.shape), outside, values.dtype)
        self.cut(whole)[...] = values
        return whole


def inside_volume(write: Write, crop: Crop, outside: Array) -> Write:
    """Return a function that writes slabs of a case at their place in its volume; `outside` is written at once.

    Args:
        write: Writes the volume.
        crop: Position of the case in it.
        outside: A number for a map `[*S]`, or one for each class `[L, 1, ...]`, in the precision of the file.
    """
    rows, plane = crop.box[0], Crop(crop.shape[1:], crop.box[1:])
    step = max(1, _AT_ONCE // (outside.size * math.prod(plane.shape)))
    for left in (range(rows.start), range(rows.stop, crop.shape[0])):
        for start in left[::step]:
            count = min(step, left.stop - start)
            write(start, np.full((*outside.shape[:1], count, *plane.shape), outside))
    return lambda start, values: write(rows.start + start, plane.put_back(values, outside=outside))


def crop_of(probs: Array, activation: Activation = "softmax") -> Crop | None:
    """Return what nnU-Net predicted of probabilities `[L, *S]`; None for the whole volume.

    A softmax may saturate to exactly 1 inside of the crop, too. The crop is a box, so it is the smallest box around all
    voxels that are not forced; it is empty if all of them are.

    Examples:
        >>> probs = np.zeros((2, 4, 4)); probs[0] = 1; probs[:, 1:3, 1:3] = 0.5
        >>> crop_of(probs)
        Crop(shape=(4, 4), box=(slice(1, 3, None), slice(1, 3, None)))
    """
    from scipy.ndimage import find_objects  # noqa: PLC0415  (slow to import, and most folders need it never)

    forced = np.asarray(probs[0] == (0 if activation == "sigmoid" else 1))
    if not forced.any():
        return None
    for others in probs[1:]:
        forced &= np.asarray(others == 0)
        release_pages(probs)
    shape = tuple(probs.shape[1:])
    box = (slice(0, 0),) * len(shape) if forced.all() else find_objects((~forced).view(np.uint8))[0]
    return None if box == tuple(slice(0, length) for length in shape) else Crop(shape, box)
