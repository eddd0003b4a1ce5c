"""Class-conditional scaling on the CPU: gaps between sorted scores, and the loss and its gradient in one pass."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.cpu.affine import map_block, products_of, sum_of, widen
from segcal.kernels.cpu.compiling import BLOCK, compiled, exp_below_zero, log_above_one, over_pixels
from segcal.types import Array


@compiled
def _residuals(
    t: Array, place: Array, weight: Array, at: int, n: int, ordered: bool, total: Array, loss: Array, residual: Array
) -> None:
    """Losses of `n` pixels from `at` on, and the probability of each rank minus the truth."""
    rows = t.shape[0]
    for i in range(n):
        total[i] = 1.0  # the predicted class has the score 0, which is the largest
    for r in range(rows):
        row, powers = t[r], residual[r]
        if ordered and r > 0:
            above = t[r - 1]
            for i in range(n):
                row[i] += above[i]
        for i in range(n):
            powers[i] = exp_below_zero(-row[i])
            total[i] += powers[i]
    for i in range(n):
        share, rank = weight[at + i], place[at + i]
        loss[i] = share * (log_above_one(total[i]) + (t[rank - 1, i] if rank > 0 else 0.0))
        total[i] = share / total[i]
    for r in range(rows):
        row = residual[r]
        for i in range(n):
            row[i] *= total[i]
    for i in range(n):
        if place[at + i] > 0:
            residual[place[at + i] - 1, i] -= weight[at + i]


@compiled
def _add_upwards(residual: Array, n: int) -> None:
    """Add to each row those below it: t_r moves all ranks from r on."""
    for r in range(residual.shape[0] - 2, -1, -1):
        row, below = residual[r], residual[r + 1]
        for i in range(n):
            row[i] += below[i]


@compiled
def _expert_sums(
    features: Array, place: Array, weight: Array, matrix: Array, ordered: bool, partial: Array, start: int, stop: int
) -> None:
    rows, width = matrix.shape
    x, t, residual = np.empty((width, BLOCK)), np.empty((rows, BLOCK)), np.empty((rows, BLOCK))
    total, loss, zero = np.empty(BLOCK), np.empty(BLOCK), np.zeros(rows)
    for at in range(start, stop, BLOCK):
        n, out = min(BLOCK, stop - at), partial[at // BLOCK]
        widen(features, at, n, x)
        map_block(matrix, zero, x, 0, n, t)
        _residuals(t, place, weight, at, n, ordered, total, loss, residual)
        if ordered:
            _add_upwards(residual, n)
        out[0] = sum_of(loss, n)
        for r in range(rows):
            products_of(residual[r], x, n, out[1 + r * width : 1 + (r + 1) * width])


def expert_loss(expert: tuple[Tensor, Tensor, Tensor], matrix: Tensor, *, ordered: bool) -> tuple[Tensor, Tensor]:
    """Twin of `segcal.functional.class_conditional.expert_loss`."""
    features, place, weight = (values.numpy() for values in expert)
    pixels = features.shape[1]
    partial = np.zeros((-(-pixels // BLOCK), 1 + matrix.numel()))
    over_pixels(_expert_sums, pixels, features, place, weight, matrix.contiguous().numpy(), ordered, partial)
    sums = partial.sum(axis=0)
    return torch.tensor(sums[0], dtype=torch.float64), torch.from_numpy(-sums[1:]).view(matrix.shape)


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
