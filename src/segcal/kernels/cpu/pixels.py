"""Fused passes over the pixels of an image on the CPU: what the metrics need of each, the likelihood, checks, borders.

Computed in float64 whatever the precision of the logits. Checks and borders use numpy and numba on one thread, because
PyTorch's threads spin for milliseconds after each small operation, on cores that the kernels need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.cpu.compiling import BLOCK, as_numpy, compiled, exp_below_zero, log_above_one, over_pixels
from segcal.types import Array


@compiled
def largest(logits: Array, at: int, n: int, top: Array, winner: Array) -> None:
    """The largest logit and the first class that has it, of `n` pixels from `at` on."""
    # slices of one row, here and below: with two indices the compiler does not use the vector units
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
def _describe(
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


def describe(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Confidence, predicted class, NLL, Brier score and entropy of `[L, N]` logits, each `[N]`."""
    z = as_numpy(logits)
    n = z.shape[1]
    confidence, nll, brier, entropy = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    predicted = np.empty(n, np.int32)
    over_pixels(_describe, n, z, as_numpy(labels), confidence, predicted, nll, brier, entropy)
    first, *rest = (torch.from_numpy(values) for values in (confidence, predicted, nll, brier, entropy))
    return (first, rest[0], rest[1], rest[2], rest[3])


@compiled
def _likelihood(logits: Array, labels: Array, alpha: float, block_sums: Array, start: int, stop: int) -> None:
    classes = logits.shape[0]
    top = np.empty(BLOCK, logits.dtype)
    winner = np.empty(BLOCK, np.int32)
    total, first, second, mean = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        largest(logits, at, n, top, winner)
        total[:] = 0.0
        first[:] = 0.0
        second[:] = 0.0
        mean[:] = 0.0
        for c in range(classes):
            row = logits[c, at : at + n]
            for i in range(n):
                below = np.float64(row[i]) - np.float64(top[i])
                e = exp_below_zero(alpha * below)
                total[i] += e
                first[i] += e * below
                second[i] += e * below * below
                mean[i] += below
        for i in range(n):  # in vectors: mean logit, its variance, and the logarithm of the sum, in place
            inverse = 1.0 / total[i]
            first[i] *= inverse
            second[i] = max(second[i] * inverse - first[i] * first[i], 0.0)
            total[i] = log_above_one(total[i])
            mean[i] /= classes
        pixels, slope, curvature, nll, at_zero, at_infinity = 0, 0.0, 0.0, 0.0, 0.0, 0.0
        for i in range(n):
            label = labels[at + i]
            if label < 0:
                continue
            truth = np.float64(logits[label, at + i]) - np.float64(top[i])
            pixels += 1
            slope += first[i] - truth
            curvature += second[i]
            nll += total[i] - alpha * truth
            at_zero += mean[i] - truth
            at_infinity -= truth
        block = at // BLOCK
        block_sums[block, 0] = pixels
        block_sums[block, 1] = nll
        block_sums[block, 2] = slope
        block_sums[block, 3] = curvature
        block_sums[block, 4] = at_zero
        block_sums[block, 5] = at_infinity


def likelihood(logits: Tensor, labels: Tensor, alpha: float) -> Tensor:
    """Pixels, NLL, its slope and curvature in the inverse temperature at `alpha`, and its slope at 0 and at infinity.

    Sums over the labelled pixels of `[L, N]` logits: Float64[6].
    """
    z = as_numpy(logits)
    n = z.shape[1]
    block_sums = np.zeros((-(-n // BLOCK), 6))
    over_pixels(_likelihood, n, z, as_numpy(labels), float(alpha), block_sums)
    return torch.from_numpy(block_sums.sum(axis=0))  # numpy sums pairwise


def sum_is_finite(values: Tensor) -> bool:
    """Whether the sum of all values is finite, which it is not if one of them is not."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(as_numpy(values).sum()))


@compiled
def _relabel(labels: Array, ignored: Array, num_classes: int, result: Array) -> int:
    """Fill `result`; how many labels are neither class nor ignored. In plain loops, which the vector units can run."""
    foreign = 0
    for i in range(labels.shape[0]):
        label = np.int64(labels[i])
        result[i] = label
        foreign += int((label < 0) | (label >= num_classes))
    for k in range(ignored.shape[0]):
        found = 0
        for i in range(labels.shape[0]):
            same = np.int64(labels[i]) == ignored[k]
            result[i] = -1 if same else result[i]
            found += int(same)
        if ignored[k] < 0 or ignored[k] >= num_classes:
            foreign -= found
    return foreign


def relabel(labels: Tensor, ignored: Sequence[int], num_classes: int) -> tuple[Tensor, int]:
    """Labels as int64 with -1 for ignored ones, and the position of the first that is neither class nor ignored."""
    values = as_numpy(labels)
    result = np.empty(values.shape, np.int64)
    unique = np.unique(np.array(ignored, np.int64))
    if not _relabel(values.reshape(-1), unique, num_classes, result.reshape(-1)):
        return torch.from_numpy(result), -1
    wide = values.reshape(-1).astype(np.int64)
    wrong = ((wide < 0) | (wide >= num_classes)) & ~np.isin(wide, unique)
    return torch.from_numpy(result), int(wrong.argmax())


@compiled
def _mark_changes(labels: Array, near: Array, step: int, width: int) -> None:
    """Mark, in rows of pixels, both of any two whose labels differ and that are up to `width` times `step` apart."""
    for row in range(labels.shape[0]):
        line, marks = labels[row], near[row]
        for offset in range(step, min(width * step, line.shape[0] - 1) + 1, step):
            here, there, first, second = line[:-offset], line[offset:], marks[:-offset], marks[offset:]
            for i in range(here.shape[0]):
                first[i] |= np.uint8(here[i] != there[i])
            for i in range(here.shape[0]):
                second[i] |= np.uint8(here[i] != there[i])


def differs_along_axes(labels: Tensor, width: int) -> Tensor:
    """Pixels of `[B, *S]` labels that differ from a neighbour up to `width` steps away along an axis of `*S`."""
    values = as_numpy(labels)
    if values.size and values.min() >= -(1 << 15) and values.max() < 1 << 15:
        values = values.astype(np.int16)  # four times as many to a vector
    near = np.zeros(values.shape, np.uint8)
    for axis in range(1, values.ndim if values.size else 1):
        step = math.prod(values.shape[axis + 1 :])
        rows = (-1, values.shape[axis] * step)
        _mark_changes(values.reshape(rows), near.reshape(rows), step, width)
    return torch.from_numpy(near.view(np.bool_))


@compiled
def _inside_box(mask: Array, rows: Array, first: int, last: int, found: Array) -> int:
    count, length = 0, mask.shape[1]
    for row in rows:
        line = mask[row]
        for column in range(first, last):
            found[count] = row * length + column
            count += int(line[column])  # without a branch: a pixel outside is written over by the next
    return count


def inside_box(mask: Tensor, box: Sequence[slice]) -> Tensor:
    """Positions, in an image laid flat, of the pixels of a box that lie inside a mask `[*S]`."""
    values, last = as_numpy(mask), box[-1]
    rows = np.zeros(1, dtype=np.int64)
    for interval, length in zip(box[:-1], values.shape[:-1], strict=True):
        rows = (rows[:, np.newaxis] * length + np.arange(interval.start, interval.stop)).reshape(-1)
    found = np.empty(len(rows) * (last.stop - last.start) + 1, np.int64)
    count = _inside_box(values.reshape(-1, values.shape[-1]), rows, last.start, last.stop, found)
    return torch.from_numpy(found[:count])
