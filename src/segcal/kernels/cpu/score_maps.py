"""Maps of class probabilities on the CPU, without writing the probabilities to memory first."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.constants import CELLS, NEAREST, SMALLEST, TIE_BREAK
from segcal.kernels.cpu.compiling import BLOCK, as_numpy, cell_of, compiled, exp_below_zero, log_above_one, over_pixels
from segcal.kernels.cpu.pixels import largest
from segcal.kernels.cpu.scores import normalised
from segcal.kernels.dispatch import DECLINED
from segcal.types import Array

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
    """Twin of `segcal.functional.score_maps.mapped_log_probabilities`."""
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
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        largest(logits, at, n, top, winner)
        total[:] = 0.0
        others[:] = 0.0
        for c in range(classes):
            row, line = logits[c, at : at + n], out[c, at : at + n]
            for i in range(n):
                power = exp_below_zero(np.float64(row[i]) - np.float64(top[i]))
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


def beta_log_probabilities(logits: Tensor, coefficients: Tensor) -> Tensor:
    """Twin of `segcal.functional.score_maps.beta_log_probabilities`."""
    if not logits.numel():
        return DECLINED
    batch = as_numpy(logits.flatten(2) if logits.ndim > 2 else logits.unsqueeze(2))
    out = np.empty(batch.shape)
    for z, found in zip(batch, out, strict=True):
        over_pixels(_beta_scores, z.shape[1], z, as_numpy(coefficients), NEAREST, found)
    return torch.from_numpy(out).view(logits.shape)
