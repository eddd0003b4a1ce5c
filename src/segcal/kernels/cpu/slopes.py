"""Slopes of the log-likelihood at many temperatures, compiled for the CPU: two exponentials for each score."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.cpu.compiling import as_numpy, compiled, exp_below_zero, over_pixels
from segcal.kernels.dispatch import DECLINED
from segcal.types import Array

_BLOCK = 64  # pixels whose sums at all temperatures stay in the first-level cache


@compiled
def _slopes(logits: Array, labels: Array, inverse: Array, result: Array, start: int, stop: int) -> None:
    steps, classes = result.shape[0], logits.shape[0]
    top, below, power = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    right, total, weighted = np.empty(_BLOCK), np.empty((steps, _BLOCK)), np.empty((steps, _BLOCK))
    for at in range(start, stop, _BLOCK):
        n = min(_BLOCK, stop - at)
        top[:] = -np.inf
        for c in range(classes):
            row = logits[c, at : at + n]
            for i in range(n):
                top[i] = max(top[i], np.float64(row[i]))
        total[:] = 0
        weighted[:] = 0
        for c in range(classes):
            row = logits[c, at : at + n]
            for i in range(n):
                below[i] = row[i] - top[i]
            for last in (steps - 1, steps - 2):
                for i in range(n):
                    power[i] = exp_below_zero(below[i] * inverse[last])
                for k in range(last, -1, -2):
                    sums, products = total[k], weighted[k]
                    for i in range(n):
                        sums[i] += power[i]
                        products[i] += power[i] * below[i]
                        power[i] *= power[i]
        for i in range(n):
            right[i] = logits[max(labels[at + i], 0), at + i] - top[i]
        for k in range(steps):
            sums, products, out = total[k], weighted[k], result[k, at : at + n]
            for i in range(n):
                out[i] = right[i] - products[i] / sums[i] if labels[at + i] >= 0 else 0.0


def likelihood_slopes(logits: Tensor, labels: Tensor, lowest: float, octaves: int) -> Tensor:
    """Twin of `segcal.functional.slopes.likelihood_slopes`."""
    if not logits.numel() or not octaves:
        return DECLINED
    inverse = 1 / (lowest * 2 ** (np.arange(2 * octaves + 1) / 2))
    result = np.empty((len(inverse), labels.numel()), np.float32)
    over_pixels(_slopes, labels.numel(), as_numpy(logits), as_numpy(labels), inverse, result)
    return torch.from_numpy(result)
