"""Labels of sigmoid heads: one mask of 0 and 1 for each channel, whose classes may overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from segcal.functional.checks import IGNORED, ignored_labels
from segcal.types import Array, IgnoreIndex, InputError


def channel_labels(labels: Array, channels: Sequence[int | Sequence[int]], ignore_index: IgnoreIndex = None) -> Array:
    """Return masks `[C, *S]` of 0 and 1 made from a label map `[*S]`: channel k holds the labels `channels[k]`.

    Ignored pixels become -1 in every channel, so cases with such labels have `ignore_index=-1`.

    >>> tumour = np.array([0, 1, 2, 3, 255])  # edema, necrosis, enhancing; 255 is not annotated
    >>> channel_labels(tumour, channels=[[1, 2, 3], [2, 3], 3], ignore_index=255).tolist()
    [[0, 1, 1, 1, -1], [0, 0, 1, 1, -1], [0, 0, 0, 1, -1]]
    """
    if not channels:
        raise InputError("channels must list the labels of each channel, got none; give at least one")
    members = [(own,) if isinstance(own, int) else tuple(own) for own in channels]
    outside = _any_of(labels, ignored_labels(ignore_index))
    found: Array = np.stack([_any_of(labels, own) for own in members]).astype(np.int8)
    found[:, outside] = IGNORED
    return found


def _any_of(labels: Array, wanted: Sequence[int]) -> Array:
    found = np.zeros(labels.shape, bool)
    for label in wanted:
        found |= np.asarray(labels) == label
    return found
