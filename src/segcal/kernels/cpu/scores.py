"""Fused passes over the class probabilities of an image on the CPU: score histograms, and maps of scores.

See `scores` for what is computed. A first pass finds the largest logit and the sum of exponentials of each pixel;
then each thread takes whole classes, because the table of one class fits the second-level cache and the tables of all
classes do not. So no table is copied for a thread, and sums do not depend on how many threads there are.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.constants import CELLS
from segcal.kernels.cpu.compiling import BLOCK, as_numpy, compiled, exp_below_zero, log_above_one, over_pixels, run_all
from segcal.types import Array

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
    row: Array, labels: Array, c: int, top: Array, inverse: Array, edges: Array, fine: bool,
    count: Array, hits: Array, distance: Array,
) -> None:  # fmt: skip
    """Add the probabilities of one class to its table, by cell where `fine`, else by edges."""
    score, key = np.empty(BLOCK), np.empty(BLOCK, np.int64)
    for at in range(0, row.shape[0], BLOCK):
        n = min(BLOCK, row.shape[0] - at)
        values, peak, share, truth = row[at : at + n], top[at : at + n], inverse[at : at + n], labels[at : at + n]
        for i in range(n):
            score[i] = exp_below_zero(np.float64(values[i]) - peak[i]) * share[i]
        if fine:
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
    logits: Tensor, labels: Tensor, edges: Tensor | None, count: Tensor, hits: Tensor, distance: Tensor
) -> Tensor:
    """Add `[L, N]` logits to tables `[L, K]` in place; pixels, right pixels and summed NLL."""
    z, truth = as_numpy(logits), as_numpy(labels)
    top, inverse, sums = _normalised(z, truth)
    tables = [as_numpy(table) for table in (count, hits, distance)]
    inner = np.empty(0) if edges is None else as_numpy(edges)
    run_all([
        partial(_count_class, z[c], truth, c, top, inverse, inner, edges is None, *(table[c] for table in tables))
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
    """Logarithms of values over their total, in place."""
    for i in range(n):
        total[i] = -log_above_one(1.0 / total[i])
    for c in range(out.shape[0]):
        line = out[c, at : at + n]
        for i in range(n):
            line[i] = -log_above_one(1.0 / line[i]) - total[i]


def map_scores(logits: Tensor, breaks: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Log-probabilities of `[L, N]` logits whose scores go through a piecewise linear map and are normalised."""
    z = as_numpy(logits)
    edges, out = as_numpy(breaks), np.empty(z.shape)
    first = np.empty((edges.shape[0], CELLS), np.int32)
    _first_breaks(edges, first)
    top, inverse, _ = _normalised(z, np.full(z.shape[1], -1))
    over_pixels(_map_scores, z.shape[1], z, top, inverse, first, edges, as_numpy(left), as_numpy(right), out)
    return torch.from_numpy(out)


@compiled
def _mapped_nll(
    logits: Array, labels: Array, top: Array, inverse: Array, first: Array, breaks: Array, left: Array, right: Array,
    nll: Array, start: int, stop: int,
) -> None:  # fmt: skip
    score, total, truth = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        total[:] = 0.0
        truth[:] = 1.0
        for c in range(logits.shape[0]):
            row, peak, share, label = (
                logits[c, at : at + n],
                top[at : at + n],
                inverse[at : at + n],
                labels[at : at + n],
            )
            g = min(c, breaks.shape[0] - 1)
            for i in range(n):
                score[i] = exp_below_zero(np.float64(row[i]) - peak[i]) * share[i]
            for i in range(n):
                value = _look_up(score[i], first[g], breaks[g], left[g], right[g]) + TIE_BREAK * score[i]
                value = max(value, SMALLEST)
                total[i] += value
                truth[i] = value if label[i] == c else truth[i]
        summed = 0.0
        for i in range(n):
            if labels[at + i] >= 0:
                summed += np.log(total[i]) - np.log(truth[i])
        nll[at // BLOCK] = summed


def mapped_nll(logits: Tensor, labels: Tensor, breaks: Tensor, left: Tensor, right: Tensor) -> float:
    """Summed NLL after `map_scores`, without writing every probability to memory; negative labels are left out."""
    z, truth, edges = as_numpy(logits), as_numpy(labels), as_numpy(breaks)
    first, nll = np.empty((edges.shape[0], CELLS), np.int32), np.zeros(-(-z.shape[1] // BLOCK))
    _first_breaks(edges, first)
    top, inverse, _ = _normalised(z, truth)
    over_pixels(_mapped_nll, z.shape[1], z, truth, top, inverse, first, edges, as_numpy(left), as_numpy(right), nll)
    return float(nll.sum())


@compiled
def _beta_scores(logits: Array, coefficients: Array, least: float, out: Array, start: int, stop: int) -> None:
    classes = logits.shape[0]
    peak, total, others, winner = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK, np.int64)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        peak[:] = -np.inf
        total[:] = 0.0
        others[:] = 0.0
        for c in range(classes):
            row = logits[c, at : at + n]
            for i in range(n):
                higher = np.float64(row[i]) > peak[i]
                winner[i] = c if higher else winner[i]
                peak[i] = np.float64(row[i]) if higher else peak[i]
        for c in range(classes):
            row, line = logits[c, at : at + n], out[c, at : at + n]
            for i in range(n):
                power = exp_below_zero(np.float64(row[i]) - peak[i])
                line[i] = power
                total[i] += power
                others[i] += 0.0 if winner[i] == c else power  # not total - 1, which would cancel
        for i in range(n):
            peak[i] = 1.0 / total[i]
        for c in range(classes):
            line = out[c, at : at + n]
            a, b, constant = coefficients[c, 0], coefficients[c, 1], coefficients[c, 2]
            for i in range(n):
                rest = others[i] if winner[i] == c else total[i] - line[i]
                minus_log = log_above_one(1.0 / max(line[i] * peak[i], least))
                minus_log_rest = log_above_one(1.0 / max(rest * peak[i], least))
                u = b * minus_log_rest - a * minus_log + constant
                line[i] = min(u, 0.0) - log_above_one(1.0 + exp_below_zero(-abs(u)))
        _subtract_log_sum(out, peak, total, at, n)


@compiled
def _subtract_log_sum(out: Array, peak: Array, total: Array, at: int, n: int) -> None:
    """Subtract the logarithm of the sum of exponentials over classes, in place; `peak` and `total` are overwritten."""
    peak[:] = -np.inf
    total[:] = 0.0
    for c in range(out.shape[0]):
        line = out[c, at : at + n]
        for i in range(n):
            peak[i] = max(peak[i], line[i])
    for c in range(out.shape[0]):
        line = out[c, at : at + n]
        for i in range(n):
            total[i] += exp_below_zero(line[i] - peak[i])
    for i in range(n):
        total[i] = log_above_one(total[i]) + peak[i]
    for c in range(out.shape[0]):
        line = out[c, at : at + n]
        for i in range(n):
            line[i] -= total[i]


def beta_scores(logits: Tensor, coefficients: Tensor, least: float) -> Tensor:
    """Log-probabilities of `[L, N]` logits by the beta map of each class; p and 1 - p are at least `least`."""
    z = as_numpy(logits)
    out = np.empty(z.shape)
    over_pixels(_beta_scores, z.shape[1], z, as_numpy(coefficients), least, out)
    return torch.from_numpy(out)


def _normalised(logits: Array, labels: Array) -> tuple[Array, Array, Array]:
    n = logits.shape[1]
    top, inverse, sums = np.empty(n), np.empty(n), np.zeros((-(-n // BLOCK), 3))
    over_pixels(_normalise, n, logits, labels, top, inverse, sums)
    return top, inverse, sums.sum(axis=0)  # numpy sums pairwise
