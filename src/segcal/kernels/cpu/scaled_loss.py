"""The NLL of scaled logits and its derivative in the temperature on the CPU.

Automatic differentiation reads and writes all classes of all pixels ten times; this reads them twice.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

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
def _nll(logits: Array, labels: Array, temperature: Array, nll: Array, slope: Array, start: int, stop: int) -> None:
    classes = logits.shape[0]
    top, inverse = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    total, weighted = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        largest_logits(logits, at, n, top)
        heat = temperature[at : at + n]
        for i in range(n):
            inverse[i] = np.float32(1) / heat[i]
            total[i] = np.float32(0)
            weighted[i] = np.float32(0)
        for c in range(classes):
            row = logits[c, at : at + n]
            for i in range(n):
                below = row[i] - top[i]
                e = exp_float32(below * inverse[i])
                total[i] += e
                weighted[i] += e * below
        loss, rate = nll[at : at + n], slope[at : at + n]
        for i in range(n):
            weighted[i] = weighted[i] / total[i]
            loss[i] = np.float32(log_above_one(np.float64(total[i])))
        for i in range(n):
            label = labels[at + i]
            truth = logits[max(label, 0), at + i] - top[i]
            kept = np.float32(1) if label >= 0 else np.float32(0)
            loss[i] = kept * (loss[i] - truth * inverse[i])
            rate[i] = kept * ((truth - weighted[i]) * inverse[i] * inverse[i])


def scaled_nll(logits: Tensor, labels: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Twin of `segcal.functional.scaled_loss.scaled_nll`, in float32."""
    if not (logits.dtype == temperature.dtype == torch.float32 and logits.numel()):
        return DECLINED  # type: ignore[return-value]
    z, y = as_numpy(logits).reshape(*logits.shape[:2], -1), as_numpy(labels).reshape(len(labels), -1)
    heat = as_numpy(temperature).reshape(len(temperature), -1)
    nll, slope = np.empty(y.shape, np.float32), np.empty(y.shape, np.float32)
    for k in range(len(z)):
        over_pixels(_nll, z.shape[2], z[k], y[k], heat[k], nll[k], slope[k])
    return torch.from_numpy(nll).view(labels.shape), torch.from_numpy(slope).view(labels.shape)
