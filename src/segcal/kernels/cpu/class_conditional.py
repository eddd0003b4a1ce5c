"""Class-conditional scaling on the CPU: gaps between sorted scores."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.cpu.compiling import compiled, over_pixels
from segcal.types import Array


@compiled
def _find_ranks(scores: Array, labels: Array, gaps: Array, place: Array, start: int, stop: int) -> None:
    """Gaps between the scores in descending order, and the rank of each label."""
    classes = scores.shape[0]
    value, index = np.empty(classes), np.empty(classes, np.int64)
    for i in range(start, stop):
        for c in range(classes):  # few classes: an insertion sort, which keeps the order of equal scores
            own, r = scores[c, i], c
            while r > 0 and value[r - 1] < own:
                value[r], index[r] = value[r - 1], index[r - 1]
                r -= 1
            value[r], index[r] = own, c
        for r in range(classes):
            if r < classes - 1:
                gaps[r, i] = value[r] - value[r + 1]
            if index[r] == labels[i]:
                place[i] = r


def ranked_features(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Twin of `segcal.functional.class_conditional.ranked_features`."""
    features, place = np.ones(scores.shape), np.empty(scores.shape[1], np.int64)
    over_pixels(_find_ranks, len(place), scores.numpy(), labels.numpy(), features, place)
    return torch.from_numpy(features), torch.from_numpy(place)
