"""Fused passes over the pixels of an image on the CPU: statistics for the metrics, sums of the likelihood.

Computed in float64 whatever the precision of the logits.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.cpu.compiling import (
    BLOCK,
    as_numpy,
    compiled,
    exp_below_zero,
    largest_logits,
    log_above_one,
    over_pixels,
)
from segcal.types import Array


@compiled
def largest(logits: Array, at: int, n: int, top: Array, winner: Array) -> None:
    """Find the largest logit, and the first class that has it, of `n` pixels from `at` on."""
    # slices of one row, here and below: the compiler does not vectorize accesses with two indices
    classes = logits.shape[0]
    first = logits[0, at : at + n]
    for i in range(n):
        top[i] = first[i]
        winner[i] = 0
    for c in range(1, classes - 1, 2):  # two classes at a time need half the loads and stores
        one, two = logits[c, at : at + n], logits[c + 1, at : at + n]
        for i in range(n):
            higher = two[i] > one[i]
            value = two[i] if higher else one[i]
            wins = value > top[i]
            winner[i] = (c + 1 if higher else c) if wins else winner[i]
            top[i] = value if wins else top[i]
    if classes > 1 and classes % 2 == 0:
        last = logits[classes - 1, at : at + n]
        for i in range(n):
            wins = last[i] > top[i]
            winner[i] = classes - 1 if wins else winner[i]
            top[i] = last[i] if wins else top[i]


@compiled
def _statistics(
    logits: Array,
    labels: Array,
    confidence: Array,
    predicted: Array,
    nll: Array,
    brier: Array,
    entropy: Array,
    start: int,
    stop: int,
) -> None:
    classes = logits.shape[0]
    top = np.empty(BLOCK, logits.dtype)
    winner = np.empty(BLOCK, np.int32)
    total, squares, weighted, truth = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        largest(logits, at, n, top, winner)
        total[:] = 0.0
        squares[:] = 0.0
        weighted[:] = 0.0
        for c in range(0, classes - 1, 2):  # two classes at a time need half the loads and stores
            one, two = logits[c, at : at + n], logits[c + 1, at : at + n]
            for i in range(n):
                highest = np.float64(top[i])
                a, b = np.float64(one[i]) - highest, np.float64(two[i]) - highest
                e, f = exp_below_zero(a), exp_below_zero(b)
                total[i] += e + f
                squares[i] += e * e + f * f
                weighted[i] += e * a + f * b
        if classes % 2:
            one = logits[classes - 1, at : at + n]
            for i in range(n):
                a = np.float64(one[i]) - np.float64(top[i])
                e = exp_below_zero(a)
                total[i] += e
                squares[i] += e * e
                weighted[i] += e * a
        for i in range(n):
            truth[i] = np.float64(logits[max(labels[at + i], 0), at + i]) - np.float64(top[i])
        out = confidence[at : at + n], nll[at : at + n], brier[at : at + n], entropy[at : at + n]
        classes_out = predicted[at : at + n]
        for i in range(n):
            inverse = 1.0 / total[i]
            log_total = log_above_one(total[i])
            out[0][i] = inverse
            out[1][i] = log_total - truth[i]
            out[2][i] = squares[i] * inverse * inverse - 2.0 * exp_below_zero(truth[i]) * inverse + 1.0
            out[3][i] = log_total - weighted[i] * inverse
            classes_out[i] = winner[i]


def pixel_statistics(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Twin of `segcal.functional.pixels.pixel_statistics`."""
    z = as_numpy(logits)
    n = z.shape[1]
    confidence, nll, brier, entropy = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    predicted = np.empty(n, np.int32)
    over_pixels(_statistics, n, z, as_numpy(labels), confidence, predicted, nll, brier, entropy)
    first, *rest = (torch.from_numpy(values) for values in (confidence, predicted, nll, brier, entropy))
    return (first, rest[0], rest[1], rest[2], rest[3])


@compiled
def _likelihood(
    logits: Array, labels: Array, edges: Array, alphas: Array, partial: Array, start: int, stop: int
) -> None:
    classes = logits.shape[0]
    top, place, alpha = np.empty(BLOCK, logits.dtype), np.zeros(BLOCK, np.int64), np.full(BLOCK, alphas[0])
    total, first, second, mean = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        largest_logits(logits, at, n, top)
        if edges.shape[0]:
            total[:] = 0.0
            for c in range(classes):
                row = logits[c, at : at + n]
                for i in range(n):
                    total[i] += exp_below_zero(np.float64(row[i]) - np.float64(top[i]))
            for i in range(n):
                place[i] = np.searchsorted(edges, 1.0 / total[i])
                alpha[i] = alphas[place[i]]
        total[:] = 0.0
        first[:] = 0.0
        second[:] = 0.0
        mean[:] = 0.0
        for c in range(classes):
            row = logits[c, at : at + n]
            for i in range(n):
                below = np.float64(row[i]) - np.float64(top[i])
                e = exp_below_zero(alpha[i] * below)
                total[i] += e
                first[i] += e * below
                second[i] += e * below * below
                mean[i] += below
        for i in range(n):  # vectorized: mean logit, its variance, and the logarithm of the sum, in place
            inverse = 1.0 / total[i]
            first[i] *= inverse
            second[i] = max(second[i] * inverse - first[i] * first[i], 0.0)
            total[i] = log_above_one(total[i])
            mean[i] /= classes
        for i in range(n):
            label = labels[at + i]
            if label < 0:
                continue
            truth = np.float64(logits[label, at + i]) - np.float64(top[i])
            sums = partial[at // BLOCK, place[i]]
            sums[0] += 1.0
            sums[1] += total[i] - alpha[i] * truth
            sums[2] += first[i] - truth
            sums[3] += second[i]
            sums[4] += mean[i] - truth
            sums[5] -= truth


def binned_sums(logits: Tensor, labels: Tensor, edges: Tensor, alphas: Tensor) -> Tensor:
    """Twin of `segcal.functional.pixels.binned_sums`."""
    z = as_numpy(logits)
    partial = np.zeros((-(-z.shape[1] // BLOCK), alphas.numel(), 6))
    over_pixels(_likelihood, z.shape[1], z, as_numpy(labels), as_numpy(edges), as_numpy(alphas), partial)
    return torch.from_numpy(partial.sum(axis=0))  # numpy sums pairwise
