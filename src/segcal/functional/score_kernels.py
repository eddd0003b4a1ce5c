"""Fused passes over the class probabilities of an image on the CPU: score histograms, and the NLL of mapped scores.

See `scores` for what is computed. A first pass finds the largest logit and the sum of exponentials of each pixel;
then each thread takes whole classes, because the table of one class fits the second-level cache and the tables of all
classes do not. So no table is copied for a thread, and sums do not depend on how many threads there are.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from segcal.functional.compiling import BLOCK, as_numpy, compiled, exp_below_zero, log_above_one, over_pixels, run_all
from segcal.types import Array

CELLS = 1 << 16
OCTAVES = 64  # of 512 cells, for probabilities below 1/2, and as many for 1 - probability
TIE_BREAK = 1e-9
SMALLEST = float(np.finfo(np.float64).tiny)


@compiled
def score_cell(score: float) -> int:
    """Which of the 65,536 cells a probability falls into; see `scores.cell_of`."""
    rest = 1.0 - score
    near = (np.float64(min(score, rest)).view(np.int64) >> 43) - ((1022 - OCTAVES) << 9)
    inside = min(max(near, np.int64(0)), np.int64(CELLS // 2 - 1))
    return inside if score < 0.5 else CELLS - 1 - inside  # type: ignore[return-value]


@compiled
def _normalise(
    logits: Array, labels: Array, top: Array, inverse: Array, partial_sums: Array, start: int, stop: int
) -> None:
    """The largest logit and 1 / sum of exponentials of each pixel; pixels, right ones and NLL of each block."""
    classes = logits.shape[0]
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        peak, share = top[at : at + n], inverse[at : at + n]
        row = logits[0, at : at + n]
        for i in range(n):
            peak[i] = np.float64(row[i])
            share[i] = 0.0
        for c in range(1, classes):
            row = logits[c, at : at + n]
            for i in range(n):
                peak[i] = max(peak[i], np.float64(row[i]))
        for c in range(classes):
            row = logits[c, at : at + n]
            for i in range(n):
                share[i] += exp_below_zero(np.float64(row[i]) - peak[i])
        pixels, right, nll = 0, 0, 0.0
        for i in range(n):
            label = labels[at + i]
            if label >= 0:
                below = np.float64(logits[label, at + i]) - peak[i]
                pixels += 1
                right += int(below >= 0.0)
                nll += log_above_one(share[i]) - below
        for i in range(n):
            share[i] = 1.0 / share[i]
        block = at // BLOCK
        partial_sums[block, 0] = pixels
        partial_sums[block, 1] = right
        partial_sums[block, 2] = nll


@compiled
def _count_class(
    row: Array, labels: Array, c: int, top: Array, inverse: Array, edges: Array,
    count: Array, hits: Array, distance: Array,
) -> None:  # fmt: skip
    """Add the probabilities of one class to its table."""
    score, key = np.empty(BLOCK), np.empty(BLOCK, np.int64)
    for at in range(0, row.shape[0], BLOCK):
        n = min(BLOCK, row.shape[0] - at)
        values, peak, share, truth = row[at : at + n], top[at : at + n], inverse[at : at + n], labels[at : at + n]
        for i in range(n):
            score[i] = exp_below_zero(np.float64(values[i]) - peak[i]) * share[i]
        if edges.shape[0] == 0:
            for i in range(n):
                key[i] = score_cell(score[i])
        else:
            key[:] = 0
            for edge in edges:
                for i in range(n):
                    key[i] += score[i] > edge
        for i in range(n):
            if truth[i] >= 0:
                count[key[i]] += 1
                distance[key[i]] += min(score[i], 1.0 - score[i])
                if truth[i] == c:
                    hits[key[i]] += 1


def count_scores(
    logits: Tensor, labels: Tensor, edges: Tensor, count: Tensor, hits: Tensor, distance: Tensor
) -> Tensor:
    """Add `[L, N]` logits to tables `[L, K]` in place; pixels, right pixels and summed NLL."""
    z, truth, top, inverse, sums = _normalised(logits, labels)
    tables = [as_numpy(table) for table in (edges, count, hits, distance)]
    run_all([
        partial(_count_class, z[c], truth, c, top, inverse, tables[0], *(table[c] for table in tables[1:]))
        for c in range(z.shape[0])
    ])  # fmt: skip
    return torch.from_numpy(sums)


@compiled
def _first_breaks(breaks: Array, first: Array) -> None:
    """How many breaks lie in cells before each cell."""
    for g in range(breaks.shape[0]):
        at = 0
        for k in range(breaks.shape[1] + 1):
            stop = CELLS if k == breaks.shape[1] else score_cell(min(breaks[g, k], 1.0)) + 1
            while at < stop:
                first[g, at] = k
                at += 1


@compiled
def _look_up(score: float, first: Array, breaks: Array, left: Array, right: Array) -> float:
    at = first[score_cell(score)]
    last = breaks.shape[0] - 1
    while at <= last and breaks[at] < score:
        at += 1
    low = breaks[max(at - 1, 0)]
    share = (score - low) / max(breaks[min(at, last)] - low, SMALLEST)
    return min(left[at] + (right[at] - left[at]) * min(max(share, 0.0), 1.0), right[at])  # type: ignore[no-any-return]


@compiled
def _mapped_nll(
    logits: Array, labels: Array, top: Array, inverse: Array, first: Array, breaks: Array, left: Array, right: Array,
    nll: Array, start: int, stop: int,
) -> None:  # fmt: skip
    total, truth = np.empty(BLOCK), np.empty(BLOCK)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        total[:] = 0.0
        for c in range(logits.shape[0]):
            row, peak, share = logits[c, at : at + n], top[at : at + n], inverse[at : at + n]
            g = min(c, breaks.shape[0] - 1)
            for i in range(n):
                score = exp_below_zero(np.float64(row[i]) - peak[i]) * share[i]
                value = _look_up(score, first[g], breaks[g], left[g], right[g]) + TIE_BREAK * score
                value = max(value, SMALLEST)
                total[i] += value
                if labels[at + i] == c:
                    truth[i] = value
        summed = 0.0
        for i in range(n):
            if labels[at + i] >= 0:
                summed += np.log(total[i]) - np.log(truth[i])
        nll[at // BLOCK] = summed


def mapped_nll(logits: Tensor, labels: Tensor, breaks: Tensor, left: Tensor, right: Tensor) -> float:
    """Summed NLL of `[L, N]` logits whose probabilities went through a piecewise linear map and were normalised."""
    z, truth, top, inverse, _ = _normalised(logits, labels)
    edges = as_numpy(breaks)
    first = np.empty((edges.shape[0], CELLS), np.int32)
    _first_breaks(edges, first)
    nll = np.zeros(-(-z.shape[1] // BLOCK))
    over_pixels(_mapped_nll, z.shape[1], z, truth, top, inverse, first, edges, as_numpy(left), as_numpy(right), nll)
    return float(nll.sum())


def _normalised(logits: Tensor, labels: Tensor) -> tuple[Array, Array, Array, Array, Array]:
    z, truth = as_numpy(logits), as_numpy(labels)
    n = z.shape[1]
    top, inverse, sums = np.empty(n), np.empty(n), np.zeros((-(-n // BLOCK), 3))
    over_pixels(_normalise, n, z, truth, top, inverse, sums)
    return z, truth, top, inverse, sums.sum(axis=0)  # numpy sums pairwise
