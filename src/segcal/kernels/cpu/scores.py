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

from segcal.kernels.constants import CELLS, NEAREST, SMALLEST, TIE_BREAK
from segcal.kernels.cpu.affine import exponentials, widen
from segcal.kernels.cpu.compiling import (
    BLOCK,
    as_numpy,
    cell_of,
    compiled,
    exp_below_zero,
    log_above_one,
    over_pixels,
    run_all,
)
from segcal.kernels.cpu.pixels import largest
from segcal.kernels.dispatch import DECLINED
from segcal.types import Array


@compiled
def _normalise(
    logits: Array, labels: Array, top: Array, inverse: Array, partial_sums: Array, start: int, stop: int
) -> None:
    """Compute the largest logit and 1 / sum of exponentials of each pixel; pixels, correct ones and NLL per block."""
    x, powers = np.empty((logits.shape[0], BLOCK)), np.empty((logits.shape[0], BLOCK))
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        peak, share = top[at : at + n], inverse[at : at + n]
        widen(logits, at, n, x)
        exponentials(x, n, peak, share, powers)
        pixels, right, nll = 0, 0, 0.0
        for i in range(n):
            label = labels[at + i]
            if label >= 0:
                below = x[label, i] - peak[i]
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


Maps = tuple[Tensor, Tensor, Tensor]
"""Breaks, left and right values of a `PiecewiseMap`."""


@compiled
def _first_breaks(breaks: Array, first: Array) -> None:
    """Count the breaks in the cells before each cell."""
    for g in range(breaks.shape[0]):
        at = 0
        for k in range(breaks.shape[1] + 1):
            stop = CELLS if k == breaks.shape[1] else cell_of(min(breaks[g, k], 1.0)) + 1
            while at < stop:
                first[g, at] = k
                at += 1


@compiled
def _look_up(score: float, first: Array, breaks: Array, left: Array, right: Array) -> float:
    at = first[cell_of(score)]
    last = breaks.shape[0] - 1
    while at <= last and breaks[at] < score:
        at += 1
    low = breaks[max(at - 1, 0)]
    share = (score - low) / max(breaks[min(at, last)] - low, SMALLEST)
    return min(left[at] + (right[at] - left[at]) * min(max(share, 0.0), 1.0), right[at])  # type: ignore[no-any-return]


@compiled
def _map_scores(
    logits: Array, top: Array, inverse: Array, first: Array, breaks: Array, left: Array, right: Array, out: Array,
    start: int, stop: int,
) -> None:  # fmt: skip
    total = np.empty(BLOCK)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        total[:] = 0.0
        for c in range(logits.shape[0]):
            row, peak, share = logits[c, at : at + n], top[at : at + n], inverse[at : at + n]
            line, g = out[c, at : at + n], min(c, breaks.shape[0] - 1)
            for i in range(n):
                line[i] = exp_below_zero(np.float64(row[i]) - peak[i]) * share[i]
            for i in range(n):
                value = _look_up(line[i], first[g], breaks[g], left[g], right[g]) + TIE_BREAK * line[i]
                line[i] = max(value, SMALLEST)
                total[i] += line[i]
        _normalise_values(out, total, at, n)


@compiled
def _normalise_values(out: Array, total: Array, at: int, n: int) -> None:
    """Compute the logarithms of values over their total, in place."""
    for i in range(n):
        total[i] = -log_above_one(1.0 / total[i])
    for c in range(out.shape[0]):
        line = out[c, at : at + n]
        for i in range(n):
            line[i] = -log_above_one(1.0 / line[i]) - total[i]


def mapped_log_probabilities(logits: Tensor, maps: Maps) -> Tensor:
    """Twin of `segcal.functional.scores.mapped_log_probabilities`."""
    if not logits.numel():
        return DECLINED
    batch = as_numpy(logits.flatten(2) if logits.ndim > 2 else logits.unsqueeze(2))
    edges, left, right = (as_numpy(field) for field in maps)
    first, out = np.empty((edges.shape[0], CELLS), np.int32), np.empty(batch.shape)
    _first_breaks(edges, first)
    for z, found in zip(batch, out, strict=True):
        top, inverse, _ = normalised(z, np.full(z.shape[1], -1))
        over_pixels(_map_scores, z.shape[1], z, top, inverse, first, edges, left, right, found)
    return torch.from_numpy(out).view(logits.shape)


@compiled
def _beta_scores(logits: Array, coefficients: Array, least: float, out: Array, start: int, stop: int) -> None:
    classes = logits.shape[0]
    top, winner = np.empty(BLOCK, logits.dtype), np.empty(BLOCK, np.int32)
    peak, total, others = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    scores, powers = np.empty((classes, BLOCK)), np.empty((classes, BLOCK))
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        largest(logits, at, n, top, winner)
        total[:] = 0.0
        others[:] = 0.0
        for c in range(classes):
            row, line = logits[c, at : at + n], scores[c]
            for i in range(n):
                power = exp_below_zero(np.float64(row[i]) - np.float64(top[i]))
                line[i] = power
                total[i] += power
                others[i] += 0.0 if winner[i] == c else power  # not total - 1, which would cancel
        for i in range(n):
            peak[i] = 1.0 / total[i]
        for c in range(classes):
            line = scores[c]
            a, b, constant = coefficients[c, 0], coefficients[c, 1], coefficients[c, 2]
            for i in range(n):
                rest = others[i] if winner[i] == c else total[i] - line[i]
                minus_log = log_above_one(1.0 / max(line[i] * peak[i], least))
                minus_log_rest = log_above_one(1.0 / max(rest * peak[i], least))
                u = b * minus_log_rest - a * minus_log + constant
                line[i] = min(u, 0.0) - log_above_one(1.0 + exp_below_zero(-abs(u)))
        exponentials(scores, n, peak, total, powers)
        for i in range(n):
            total[i] = log_above_one(total[i]) + peak[i]
        for c in range(classes):
            line, found = scores[c], out[c, at : at + n]
            for i in range(n):
                found[i] = line[i] - total[i]


def beta_log_probabilities(logits: Tensor, coefficients: Tensor) -> Tensor:
    """Twin of `segcal.functional.scores.beta_log_probabilities`."""
    if not logits.numel():
        return DECLINED
    batch = as_numpy(logits.flatten(2) if logits.ndim > 2 else logits.unsqueeze(2))
    out = np.empty(batch.shape)
    for z, found in zip(batch, out, strict=True):
        over_pixels(_beta_scores, z.shape[1], z, as_numpy(coefficients), NEAREST, found)
    return torch.from_numpy(out).view(logits.shape)
