"""Fused passes over the pixels of an image on the CPU for ETS and ATS."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.cpu.affine import exponentials, widen
from segcal.kernels.cpu.compiling import BLOCK, as_numpy, compiled, exp_below_zero, log_above_one, over_pixels
from segcal.kernels.dispatch import DECLINED
from segcal.types import Array


@compiled
def _mixture(
    logits: Array,
    labels: Array,
    importance: Array,
    alpha: float,
    weights: Array,
    partial: Array,
    start: int,
    stop: int,
) -> None:
    classes = logits.shape[0]
    x, powers = np.empty((classes, BLOCK)), np.empty((classes, BLOCK))
    top, raw, scaled = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    one, both, other = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        widen(logits, at, n, x)
        exponentials(x, n, top, raw, powers)
        scaled[:] = 0.0
        one[:] = 0.0
        both[:] = 0.0
        other[:] = 0.0
        for c in range(classes):
            row, power = x[c], powers[c]
            for i in range(n):
                e = exp_below_zero(alpha * (row[i] - top[i]))
                scaled[i] += e
                one[i] += e * e
                both[i] += e * power[i]
                other[i] += power[i] * power[i]
        out = partial[at // BLOCK]
        for i in range(n):
            label = labels[at + i]
            if label < 0:
                continue
            share = importance[label]
            below = x[label, i] - top[i]
            first = exp_below_zero(alpha * below) / scaled[i]
            second = powers[label, i] / raw[i]
            third = 1.0 / classes
            mixed = weights[0] * first + weights[1] * second + weights[2] * third
            a, b, c = first / mixed, second / mixed, third / mixed
            out[0] -= share * np.log(mixed)
            out[1] -= share * a
            out[2] -= share * b
            out[3] -= share * c
            out[4] += share * a * a
            out[5] += share * a * b
            out[6] += share * a * c
            out[8] += share * b * b
            out[9] += share * b * c
            out[12] += share * c * c
            out[13] += share * one[i] / (scaled[i] * scaled[i])
            out[14] += share * both[i] / (scaled[i] * raw[i])
            out[15] += share * other[i] / (raw[i] * raw[i])
            out[16] += share * first
            out[17] += share * second
            out[18] += share


def mixture_sums(logits: Tensor, labels: Tensor, importance: Tensor, alpha: float, weights: Tensor) -> Tensor:
    """Twin of `segcal.functional.scaling.mixture_sums`."""
    total = _summed(_mixture, logits, labels, 19, as_numpy(importance), float(alpha), as_numpy(weights))
    total[7], total[10], total[11] = total[5], total[6], total[9]  # the second derivatives are symmetric
    return total


@compiled
def _mixed(logits: Array, alpha: float, weights: Array, tiny: float, found: Array, start: int, stop: int) -> None:
    classes = logits.shape[0]
    x, raw, scaled = np.empty((classes, BLOCK)), np.empty((classes, BLOCK)), np.empty((classes, BLOCK))
    top, of_raw, of_scaled = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        widen(logits, at, n, x)
        exponentials(x, n, top, of_raw, raw)
        of_scaled[:] = 0.0
        for c in range(classes):
            row, power = x[c], scaled[c]
            for i in range(n):
                power[i] = exp_below_zero(alpha * (row[i] - top[i]))
                of_scaled[i] += power[i]
        for c in range(classes):
            one, other, out = scaled[c], raw[c], found[c, at : at + n]
            for i in range(n):
                mixed = weights[0] * one[i] / of_scaled[i] + weights[1] * other[i] / of_raw[i] + weights[2] / classes
                out[i] = -log_above_one(1.0 / max(mixed, tiny))


def mixed_logits(logits: Tensor, temperature: Tensor, weights: Tensor) -> Tensor:
    """Twin of `segcal.functional.scaling.mixed_logits`."""
    if not logits.numel() or not float(temperature) > 0:
        return DECLINED
    z: Any = as_numpy(logits).reshape(*logits.shape[:2], -1)
    found = np.empty_like(z)
    alpha, tiny = 1 / float(temperature), float(np.finfo(z.dtype).tiny)
    for scores, out in zip(z, found, strict=True):
        over_pixels(_mixed, z.shape[2], scores, alpha, as_numpy(weights), tiny, out)
    return torch.from_numpy(found).view(logits.shape)


@compiled
def _moments(z: Array, without: int, alpha: float, result: Array) -> None:
    """Compute for one pixel the largest logit, log-sum-exp, mean and variance under the softmax, and the plain mean."""
    classes = z.shape[0]
    top = -np.inf
    for c in range(classes):
        if c != without:
            top = max(top, z[c])
    total, first, second, mean = 0.0, 0.0, 0.0, 0.0
    for c in range(classes):
        if c != without:
            below = z[c] - top
            e = exp_below_zero(alpha * below)
            total += e
            first += e * below
            second += e * below * below
            mean += below
    first /= total
    result[0] = top
    result[1] = alpha * top + log_above_one(total)
    result[2] = top + first
    result[3] = max(second / total - first * first, 0.0)
    result[4] = top + mean / (classes if without < 0 else classes - 1)


@compiled
def _attended(
    logits: Array, labels: Array, threshold: float, alpha: float, partial: Array, start: int, stop: int
) -> None:
    classes = logits.shape[0]
    x, powers = np.empty((classes, BLOCK)), np.empty((classes, BLOCK))
    top, raw, z = np.empty(BLOCK), np.empty(BLOCK), np.empty(classes)
    whole, rest = np.empty(5), np.empty(5)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        widen(logits, at, n, x)
        exponentials(x, n, top, raw, powers)
        out = partial[at // BLOCK]
        for i in range(n):
            label = labels[at + i]
            if label < 0:
                continue
            for c in range(classes):
                z[c] = x[c, i] - top[i]
            _moments(z, -1, alpha, whole)
            truth = z[label]
            out[0] += 1.0
            out[1] += whole[1] - alpha * truth
            out[2] += whole[2] - truth
            out[3] += whole[3]
            out[4] += whole[4] - truth
            out[5] -= truth
            if classes == 1:
                continue
            for k in range(classes):
                if k != label and powers[k, i] / raw[i] >= threshold:
                    _moments(z, k, alpha, rest)
                    out[1] += whole[1] - rest[1]
                    out[2] += whole[2] - rest[2]
                    out[3] += whole[3] - rest[3]
                    out[4] += whole[4] - rest[4]
                    out[5] -= rest[0]
                    out[6] += 1.0


def attended_sums(logits: Tensor, labels: Tensor, threshold: float, alpha: float) -> Tensor:
    """Twin of `segcal.functional.scaling.attended_sums`."""
    return _summed(_attended, logits, labels, 7, float(threshold), float(alpha))


def _summed(kernel: Any, logits: Tensor, labels: Tensor, size: int, *settings: Any) -> Tensor:
    """Run a kernel that fills one row of sums for each block, and add the rows."""
    z = as_numpy(logits)
    partial = np.zeros((-(-z.shape[1] // BLOCK), size))
    over_pixels(kernel, z.shape[1], z, as_numpy(labels), *settings, partial)
    return torch.from_numpy(partial.sum(axis=0))
