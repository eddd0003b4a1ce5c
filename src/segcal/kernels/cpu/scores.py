"""Histograms of class probabilities on the CPU.

A first pass finds the largest logit and the sum of exponentials of each pixel; then each thread takes whole classes,
because the table of one class fits the second-level cache and the tables of all classes do not. So no table is copied
for a thread, and sums do not depend on the number of threads.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.cpu.compiling import (
    BLOCK,
    as_numpy,
    cell_of,
    compiled,
    exp_below_zero,
    largest_logits,
    log_above_one,
    over_pixels,
)
from segcal.kernels.cpu.parallel import run_all
from segcal.types import Array


@compiled
def _normalise(
    logits: Array, labels: Array, top: Array, inverse: Array, partial_sums: Array, start: int, stop: int
) -> None:
    """Compute the largest logit and 1 / sum of exponentials of each pixel; pixels, correct ones and NLL per block."""
    classes = logits.shape[0]
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        peak, share = top[at : at + n], inverse[at : at + n]
        largest_logits(logits, at, n, peak)
        share[:] = 0.0
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
    row: Array, labels: Array, c: int, top: Array, inverse: Array, edges: Array, fine: bool,
    count: Array, hits: Array, distance: Array,
) -> None:  # fmt: skip
    """Add the probabilities of one class to its table, by cell if `fine`, else by edges."""
    score, key = np.empty(BLOCK), np.empty(BLOCK, np.int64)
    for at in range(0, row.shape[0], BLOCK):
        n = min(BLOCK, row.shape[0] - at)
        values, peak, share, truth = row[at : at + n], top[at : at + n], inverse[at : at + n], labels[at : at + n]
        for i in range(n):
            score[i] = exp_below_zero(np.float64(values[i]) - peak[i]) * share[i]
        if fine:
            for i in range(n):
                key[i] = cell_of(score[i])
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
    logits: Tensor, labels: Tensor, into: tuple[Tensor, Tensor, Tensor], edges: Tensor | None = None
) -> Tensor:
    """Twin of `segcal.functional.scores.count_scores`."""
    z, truth = as_numpy(logits).reshape(len(logits), -1), as_numpy(labels).reshape(-1)
    top, inverse, sums = normalised(z, truth)
    tables = [as_numpy(table) for table in into]
    inner = np.empty(0) if edges is None else as_numpy(edges)
    run_all([
        partial(_count_class, z[c], truth, c, top, inverse, inner, edges is None, *(table[c] for table in tables))
        for c in range(z.shape[0])
    ])  # fmt: skip
    return torch.from_numpy(sums)


def normalised(logits: Array, labels: Array) -> tuple[Array, Array, Array]:
    """Return the largest logit and 1 / sum of exponentials of each pixel, and pixels, correct pixels and NLL."""
    n = logits.shape[1]
    top, inverse, sums = np.empty(n), np.empty(n), np.zeros((-(-n // BLOCK), 3))
    over_pixels(_normalise, n, logits, labels, top, inverse, sums)
    return top, inverse, sums.sum(axis=0)  # numpy sums pairwise
