"""The part of a volume that nnU-Net predicted.

nnU-Net crops images to their nonzero voxels and, when it puts its probabilities back into the whole image, gives
everything outside of the crop to the background with a probability of exactly 1 (models with regions: every channel
has a probability of exactly 0). Those voxels tell nothing about the network, and millions of certain, right answers
would hide its overconfidence. Cases are therefore cut to the crop, whose faces are edges of the image and no boundaries
of a structure; what is written for them is put back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from segcal.files import release_pages
from segcal.types import Activation, Array


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

    def put_back_probabilities(self, probs: Array, activation: Activation) -> Array:
        """Return a volume with probabilities `[L, *S]` of the case, and around them what nnU-Net has put there."""
        whole = self.put_back(probs, outside=0)
        if activation == "softmax":
            whole[0] = self.put_back(probs[0], outside=1)
        return whole


def crop_of(probs: Array, activation: Activation = "softmax") -> Crop | None:
    """Return what nnU-Net predicted of probabilities `[L, *S]`; None for the whole volume.

    A softmax may saturate to exactly 1 inside of the crop, too. The crop is a box, so it is the smallest box around all
    voxels that are not forced; it is empty if all of them are.

    Examples:
        >>> probs = np.zeros((2, 4, 4)); probs[0] = 1; probs[:, 1:3, 1:3] = 0.5
        >>> crop_of(probs)
        Crop(shape=(4, 4), box=(slice(1, 3, None), slice(1, 3, None)))
    """
    forced = np.asarray(probs[0] == (0 if activation == "sigmoid" else 1))
    if not forced.any():
        return None
    for others in probs[1:]:
        forced &= np.asarray(others == 0)
        release_pages(probs)
    shape = tuple(probs.shape[1:])
    box = (slice(0, 0),) * len(shape) if forced.all() else _box(~forced)
    return None if box == tuple(slice(0, length) for length in shape) else Crop(shape, box)


def _box(inside: Array) -> tuple[slice, ...]:
    """Return the smallest box around the true entries."""
    axes = range(inside.ndim)
    lines = [np.flatnonzero(inside.any(axis=tuple(other for other in axes if other != axis))) for axis in axes]
    return tuple(slice(int(line[0]), int(line[-1]) + 1) for line in lines)
