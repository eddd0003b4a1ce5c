"""Expected pixels per class, and labels drawn from the probabilities, in fused passes over the pixels on the CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.cpu.compiling import BLOCK, as_numpy, compiled, exp_below_zero, over_pixels
from segcal.types import Array

_UNIT = 32 * BLOCK  # pixels summed side by side; fixed, so that sums do not depend on the number of threads


@compiled
def _totals(logits: Array, at: int, n: int, top: Array, total: Array) -> None:
    """Find the largest logit of `n` pixels from `at` on, and the sum of the exponentials."""
    top[:n] = logits[0, at : at + n]
    for c in range(1, logits.shape[0]):
        row = logits[c, at : at + n]
        for i in range(n):
            top[i] = max(top[i], row[i])
    total[:] = 0.0
    for c in range(logits.shape[0]):
        row = logits[c, at : at + n]
        for i in range(n):
            total[i] += exp_below_zero(np.float64(row[i]) - np.float64(top[i]))


@compiled
def _mass(logits: Array, labels: Array, partial: Array, start: int, stop: int) -> None:
    top, total = np.empty(BLOCK, logits.dtype), np.empty(BLOCK)
    lanes = np.empty((logits.shape[0], BLOCK))  # sums side by side, to vectorize
    for first in range(start, stop, _UNIT):
        lanes[:] = 0.0
        for at in range(first, min(first + _UNIT, stop), BLOCK):
            n = min(BLOCK, stop - at)
            _totals(logits, at, n, top, total)
            for i in range(n):  # an ignored pixel weighs nothing
                total[i] = 1.0 / total[i] if labels[at + i] >= 0 else 0.0
            for c in range(logits.shape[0]):
                row, lane = logits[c, at : at + n], lanes[c]
                for i in range(n):
                    lane[i] += exp_below_zero(np.float64(row[i]) - np.float64(top[i])) * total[i]
        for c in range(logits.shape[0]):
            partial[first // _UNIT, c] = lanes[c].sum()


def class_mass(logits: Tensor, labels: Tensor) -> Tensor:
    """Twin of `segcal.functional.random_labels.class_mass`."""
    z = as_numpy(logits.reshape(logits.shape[0], -1))
    partial = np.zeros((-(-z.shape[1] // _UNIT), z.shape[0]))
    over_pixels(_mass, z.shape[1], z, as_numpy(labels.reshape(-1)), partial, unit=_UNIT)
    return torch.from_numpy(partial.sum(axis=0))  # numpy sums pairwise


@compiled
def _draw(logits: Array, labels: Array, uniform: Array, drawn: Array, start: int, stop: int) -> None:
    top, total, passed = np.empty(BLOCK, logits.dtype), np.empty(BLOCK), np.empty(BLOCK)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        _totals(logits, at, n, top, total)
        here = drawn[at : at + n]
        for i in range(n):
            total[i] *= uniform[at + i]
            passed[i] = 0.0
            here[i] = 0
        for c in range(logits.shape[0] - 1):
            row = logits[c, at : at + n]
            for i in range(n):
                passed[i] += exp_below_zero(np.float64(row[i]) - np.float64(top[i]))
                here[i] += passed[i] <= total[i]
        for i in range(n):
            here[i] = here[i] if labels[at + i] >= 0 else labels[at + i]


def labels_at(logits: Tensor, labels: Tensor, uniform: Tensor) -> Tensor:
    """Twin of `segcal.functional.random_labels.labels_at`."""
    z = as_numpy(logits)
    drawn = np.empty(z.shape[1], np.int64)
    over_pixels(_draw, z.shape[1], z, as_numpy(labels), as_numpy(uniform), drawn)
    return torch.from_numpy(drawn)
