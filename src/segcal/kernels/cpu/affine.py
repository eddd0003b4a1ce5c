"""One fused pass over the pixels of an image on the CPU: NLL of an affine map of the scores, and its gradient.

A block of pixels is widened to float64, mapped, and multiplied with its own residuals while it is in the cache, so that
neither mapped scores nor probabilities are written to memory.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.constants import SMALLEST_LOG_PROBABILITY
from segcal.kernels.cpu.compiling import BLOCK, as_numpy, compiled, exp_below_zero, log_above_one, over_pixels, summing
from segcal.kernels.dispatch import DECLINED
from segcal.types import Array

_ROOM = 1 << 20  # sums of blocks kept before they are added up (8 MiB)


@summing
def products_of(one: Array, rows: Array, n: int, out: Array) -> None:
    """Dot products of `one` with each row."""
    a = one[:n]
    last = rows.shape[0] - rows.shape[0] % 4
    for k in range(0, last, 4):  # four rows at a time need a quarter of the loads
        p, q, r, s = rows[k, :n], rows[k + 1, :n], rows[k + 2, :n], rows[k + 3, :n]
        first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
        for i in range(n):
            first += a[i] * p[i]
            second += a[i] * q[i]
            third += a[i] * r[i]
            fourth += a[i] * s[i]
        out[k], out[k + 1], out[k + 2], out[k + 3] = first, second, third, fourth
    for k in range(last, rows.shape[0]):
        p = rows[k, :n]
        total = 0.0
        for i in range(n):
            total += a[i] * p[i]
        out[k] = total


@summing
def sum_of(values: Array, n: int) -> float:
    """The sum of the first `n` values."""
    total = 0.0
    for i in range(n):
        total += values[i]
    return total


@compiled
def widen(logits: Array, at: int, n: int, x: Array) -> None:
    """The logits of `n` pixels from `at` on, as float64."""
    for c in range(logits.shape[0]):
        row, wide = logits[c, at : at + n], x[c]
        for i in range(n):
            wide[i] = np.float64(row[i])


@compiled
def exponentials(scores: Array, n: int, top: Array, total: Array, powers: Array) -> None:
    """The largest score of each pixel, the exponentials below it, and their sum."""
    # not in place, which the compiler would not vectorize
    first = scores[0]
    for i in range(n):
        top[i] = first[i]
        total[i] = 0.0
    for c in range(1, scores.shape[0]):
        row = scores[c]
        for i in range(n):
            top[i] = max(top[i], row[i])
    for c in range(scores.shape[0]):
        row, out = scores[c], powers[c]
        for i in range(n):
            power = exp_below_zero(row[i] - top[i])
            total[i] += power
            out[i] = power


@compiled
def _features(logits: Array, at: int, n: int, of_log: bool, x: Array, top: Array, total: Array, spare: Array) -> None:
    """Logits as float64, or their log-probabilities down to the smallest; `spare` is overwritten."""
    widen(logits, at, n, x)
    if of_log:
        exponentials(x, n, top, total, spare)
        for i in range(n):
            top[i] += log_above_one(total[i])
        for c in range(logits.shape[0]):
            wide = x[c]
            for i in range(n):
                wide[i] = max(wide[i] - top[i], SMALLEST_LOG_PROBABILITY)


@compiled
def map_block(weights: Array, bias: Array, x: Array, at: int, n: int, u: Array) -> None:
    """Compute weights x + bias of `n` pixels from `at` on; each pixel adds its products in the same order."""
    classes, width = weights.shape
    for c in range(classes):
        out, shift = u[c, at : at + n], bias[c]
        if x.shape[0] == classes and width == 1:
            row, scale = x[c, at : at + n], weights[c, 0]
            for i in range(n):
                out[i] = scale * row[i] + shift
            continue
        for i in range(n):
            out[i] = shift
        last = width - width % 4
        for k in range(0, last, 4):
            p, q = x[k, at : at + n], x[k + 1, at : at + n]
            r, s = x[k + 2, at : at + n], x[k + 3, at : at + n]
            e, f, g, h = weights[c, k], weights[c, k + 1], weights[c, k + 2], weights[c, k + 3]
            for i in range(n):
                out[i] += e * p[i] + f * q[i] + g * r[i] + h * s[i]
        for k in range(last, width):
            p, e = x[k, at : at + n], weights[c, k]
            for i in range(n):
                out[i] += e * p[i]


@compiled
def _affine_sums(
    logits: Array,
    labels: Array,
    importance: Array,
    weights: Array,
    bias: Array,
    of_log: bool,
    partial: Array,
    first: int,
    start: int,
    stop: int,
) -> None:
    classes, width = weights.shape
    x, u, residual = np.empty((logits.shape[0], BLOCK)), np.empty((classes, BLOCK)), np.empty((classes, BLOCK))
    diagonal = width == 1 and x.shape[0] == classes
    top, total, share, loss = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        here = first + at
        truth = labels[here : here + n]
        labelled = 0
        for i in range(n):
            labelled += int(truth[i] >= 0)
            share[i] = importance[here + i] if truth[i] >= 0 else 0.0
        if labelled == 0:
            continue
        _features(logits, here, n, of_log, x, top, total, u)
        map_block(weights, bias, x, 0, n, u)
        for i in range(n):
            loss[i] = u[max(truth[i], 0), i]
        exponentials(u, n, top, total, residual)
        for i in range(n):
            loss[i] = share[i] * (top[i] - loss[i] + log_above_one(total[i]))
            total[i] = share[i] / total[i]
        out = partial[at // BLOCK]
        out[0] = sum_of(loss, n)
        for c in range(classes):  # residuals: probability minus truth
            row = residual[c]
            for i in range(n):
                row[i] *= total[i]
        for i in range(n):
            residual[max(truth[i], 0), i] -= share[i]
        for c in range(classes):
            out[1 + classes * width + c] = sum_of(residual[c], n)
            own = out[1 + c * width : 1 + (c + 1) * width]
            products_of(residual[c], x[c : c + 1] if diagonal else x, n, own)


@compiled
def _mapped(weights: Array, bias: Array, x: Array, out: Array, start: int, stop: int) -> None:
    for at in range(start, stop, BLOCK):
        map_block(weights, bias, x, at, min(BLOCK, stop - at), out)


def mapped_scores(x: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    """Twin of `segcal.functional.affine.mapped_scores`."""
    known = x.dtype in (torch.float32, torch.float64) and x.dtype == weights.dtype == bias.dtype
    if not known or not x.numel():
        return DECLINED
    scores = as_numpy(x).reshape(-1, *x.shape[-2:])
    found = np.empty((len(scores), len(weights), x.shape[-1]), scores.dtype)
    for image, out in zip(scores, found, strict=True):
        over_pixels(_mapped, x.shape[-1], as_numpy(weights), as_numpy(bias), image, out)
    return torch.from_numpy(found).view(*x.shape[:-2], len(weights), x.shape[-1])


def affine_sums(
    logits: Tensor, labels: Tensor, importance: Tensor, weights: Tensor, bias: Tensor, *, of_log: bool
) -> Tensor:
    """Twin of `segcal.functional.affine.affine_sums`."""
    z, y = as_numpy(logits), as_numpy(labels)
    settings = (as_numpy(importance), as_numpy(weights), as_numpy(bias), of_log)
    size = 1 + weights.numel() + bias.numel()
    step = max(1, _ROOM // size) * BLOCK
    result = np.zeros(size)
    for first in range(0, z.shape[1], step):
        n = min(step, z.shape[1] - first)
        partial = np.zeros((-(-n // BLOCK), size))
        over_pixels(_affine_sums, n, z, y, *settings, partial, first)
        result += partial.sum(axis=0)
    return torch.from_numpy(result)
