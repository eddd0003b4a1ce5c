"""Labels of sigmoid heads: one mask of 0 and 1 for each channel, whose classes may overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from segcal.functional.checks import IGNORED, check_same_space, check_score_shape, ignored_labels
from segcal.functional.probability import two_class_logits
from segcal.types import Activation, Array, IgnoreIndex, InputError


def channel_labels(labels: Array, channels: Sequence[int | Sequence[int]], ignore_index: IgnoreIndex = None) -> Array:
    """Return masks `[C, *S]` of 0 and 1 made from a label map `[*S]`: channel k holds the labels `channels[k]`.

    Ignored pixels become -1 in every channel, so cases with such labels have `ignore_index=-1`.

    Examples:
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


def exclusive_problems(
    logits: Tensor, labels: Tensor, num_classes: int, activation: Activation
) -> list[tuple[Tensor, Tensor]]:
    """Return logits `[B, L, *S]` and labels `[B, *S]`: those given, or of each sigmoid channel as two classes.

    Raise unless the shapes agree.
    """
    check_score_shape(logits, num_classes, class_axis=1)
    if activation == "softmax":
        check_same_space(logits, labels, class_axis=1)
        return [(logits, labels)]
    masks = labels.unsqueeze(1) if num_classes == 1 and labels.ndim < logits.ndim else labels
    if masks.shape != logits.shape:
        raise InputError(
            f"labels of sigmoid channels must have shape {tuple(logits.shape)}, a mask of 0 and 1 for each, "
            f"got {tuple(labels.shape)}; segcal.functional.channels.channel_labels makes them from a label map"
        )
    return [(two_class_logits(logits[:, k : k + 1]), masks[:, k].contiguous()) for k in range(num_classes)]


def _any_of(labels: Array, wanted: Sequence[int]) -> Array:
    found = np.zeros(labels.shape, bool)
    for label in wanted:
        found |= np.asarray(labels) == label
    return found
