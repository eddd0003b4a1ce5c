"""The voxels that nnU-Net did not predict.

nnU-Net crops images to their nonzero voxels and, when it puts its probabilities back into the whole image, gives
everything outside of the crop to the background with a probability of exactly 1 (models with regions: every channel
has a probability of exactly 0). Those voxels tell nothing about the network, and millions of certain, right answers
would hide its overconfidence.
"""

from __future__ import annotations

import numpy as np

from segcal.files import release_pages
from segcal.types import Activation, Array


def outside_crop(probs: Array, activation: Activation = "softmax") -> Array | None:
    """Return where `[*S]` probabilities `[L, *S]` lie outside of nnU-Net's crop, or None if nothing does.

    A softmax may saturate to exactly 1 inside of the crop, too. The crop is a box, so only voxels outside of the
    smallest box around all that are not forced are taken.

    >>> probs = np.zeros((2, 4, 4)); probs[0] = 1; probs[:, 1:3, 1:3] = 0.5
    >>> outside_crop(probs).sum()
    np.int64(12)
    """
    forced = np.asarray(probs[0] == (0 if activation == "sigmoid" else 1))
    if not forced.any():
        return None
    for others in probs[1:]:
        forced &= np.asarray(others == 0)
        release_pages(probs)
    if not forced.any():
        return None
    outside = np.ones(forced.shape, bool)
    if not forced.all():
        outside[_box(~forced)] = False
    return outside if outside.any() else None


def _box(inside: Array) -> tuple[slice, ...]:
    """Return the smallest box around the true entries."""
    axes = range(inside.ndim)
    lines = [np.flatnonzero(inside.any(axis=tuple(other for other in axes if other != axis))) for axis in axes]
    return tuple(slice(int(line[0]), int(line[-1]) + 1) for line in lines)
