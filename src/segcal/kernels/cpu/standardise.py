"""Standardised log-probabilities on the CPU: softmax, logarithm and standardisation in one pass over the logits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.constants import SMALLEST_LOG_PROBABILITY
from segcal.kernels.cpu.compiling import (
    BLOCK,
    as_numpy,
    compiled,
    exp_float32,
    largest_logits,
    log_above_one,
    over_pixels,
)
from segcal.kernels.dispatch import DECLINED
from segcal.types import Array


@compiled
def _standardise(
    logits: Array, scale: float, least: float, mean: Array, inverse: Array, found: Array, start: int, stop: int
) -> None:
    classes = logits.shape[0]
    top, total = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        largest_logits(logits, at, n, top)
        total[:] = np.float32(0)
        for c in range(classes):
            row = logits[c, at : at + n]
            for i in range(n):
                total[i] += exp_float32((row[i] - top[i]) * scale)
        for i in range(n):
            total[i] = np.float32(log_above_one(max(np.float64(total[i]), 1.0)))
        for c in range(classes):
            row, out = logits[c, at : at + n], found[c, at : at + n]
            for i in range(n):
                log_probability = max((row[i] - top[i]) * scale - total[i], least)
                out[i] = (log_probability - mean[c]) * inverse[c]


def standardised_log_probabilities(
    logits: Tensor, inverse_temperature: Tensor, mean: Tensor, deviation: Tensor
) -> Tensor:
    """Twin of `segcal.functional.standardise.standardised_log_probabilities`, in float32."""
    if logits.dtype == torch.float64 or not logits.numel():
        return DECLINED
    z = as_numpy(logits).reshape(*logits.shape[:2], -1)
    found = np.empty(z.shape, np.float32)
    inverse = (1 / as_numpy(deviation)).astype(np.float32)
    scale, least = np.float32(float(inverse_temperature)), np.float32(SMALLEST_LOG_PROBABILITY)
    numbers = (scale, least, as_numpy(mean), inverse)
    for k in range(len(z)):
        over_pixels(_standardise, z.shape[2], z[k], *numbers, found[k])
    return torch.from_numpy(found).view(logits.shape)
