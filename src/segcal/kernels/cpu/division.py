"""Logits divided by temperatures on the CPU, in one pass: as logits, probabilities, log-probabilities, and their NLL.

Plain PyTorch reads the logits five times: maximum, quotient, softmax, and twice to guard the labels. Automatic
differentiation of the NLL reads and writes all classes of all pixels ten times; this reads them twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.constants import SMALLEST_LOG_PROBABILITY, least_gap
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

_LARGEST = np.float32(torch.finfo(torch.float32).max * (1 - torch.finfo(torch.float32).eps))
_GAP = np.float32(least_gap(torch.float32))
_TIED = np.float32(2) * _GAP  # the difference of two denormal numbers is smaller


@compiled
def _spread(temperature: Array, at: int, n: int, heat: Array) -> None:
    """Copy the temperatures of `n` pixels from `at` on; there may be one for all pixels."""
    first, step = (0, 0) if temperature.shape[0] == 1 else (at, 1)
    for i in range(n):
        heat[i] = temperature[first + step * i]


@compiled
def _probabilities(
    logits: Array, temperature: Array, zero: float, probs: Array, odd: Array, start: int, stop: int
) -> None:
    """Compute the softmax of the quotients; a rival that rounding makes equal to the winner is moved down.

    `odd` is set if a logit is not finite; `zero` is 0 in float32, which the compiler must not know.
    """
    classes = logits.shape[0]
    probe = np.empty(BLOCK, np.float32)
    top, inverse, total = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        largest_logits(logits, at, n, top)
        _spread(temperature, at, n, inverse)
        for i in range(n):
            inverse[i] = np.float32(1) / inverse[i]
        total[:] = np.float32(0)
        probe[:] = np.float32(0)
        for c in range(classes):
            row, out = logits[c, at : at + n], probs[c, at : at + n]
            for i in range(n):
                probe[i] += row[i] * zero  # NaN for NaN and infinity, 0 for every other number
                below = (row[i] - top[i]) * inverse[i]
                e = exp_float32(below) if below > np.float32(-87) else np.float32(0)
                out[i] = e
                total[i] += e
        for i in range(n):
            total[i] = np.float32(1) / total[i]
        _note_odd(probe, n, odd)
        for c in range(classes):
            row, out = logits[c, at : at + n], probs[c, at : at + n]
            for i in range(n):
                p, wins = out[i] * total[i], np.int32(row[i] >= top[i])
                rival = np.int32(p >= total[i]) & (np.int32(1) - wins)
                out[i] = np.int32(np.float32(p).view(np.int32) - rival).view(np.float32)


@compiled
def _note_odd(probe: Array, n: int, odd: Array) -> None:
    """Set `odd` if one of the first `n` numbers is NaN rather than 0."""
    count = 0
    for i in range(n):
        count += int(probe[i] != 0)
    if count:
        odd[0] = True


@compiled
def _next_below(x: float) -> float:
    """Return the number below; see `segcal.functional.probability.next_below`."""
    bits = np.float32(x).view(np.int32)
    below = np.int32(bits - np.int32(1) if bits > 0 else bits + np.int32(1)).view(np.float32)
    return -_GAP if abs(x) < _GAP else below  # type: ignore[return-value]


@compiled
def _quotients(
    logits: Array, temperature: Array, zero: float, scaled: Array, odd: Array, start: int, stop: int
) -> None:
    """Compute the quotients within the range of float32, with the same guard and the same check."""
    top, heat, probe = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        largest_logits(logits, at, n, top)
        _spread(temperature, at, n, heat)
        probe[:] = np.float32(0)
        for c in range(logits.shape[0]):
            row, out = logits[c, at : at + n], scaled[c, at : at + n]
            for i in range(n):
                probe[i] += row[i] * zero
                x = min(max(row[i] / heat[i], -_LARGEST), _LARGEST)
                largest = min(max(top[i] / heat[i], -_LARGEST), _LARGEST)
                out[i] = _next_below(x) if (largest - x < _TIED) & (row[i] < top[i]) else x
        _note_odd(probe, n, odd)


def scaled_probabilities(logits: Tensor, temperature: Tensor) -> Tensor:
    """Twin of `segcal.functional.division.scaled_probabilities`, in float32."""
    return _run(_probabilities, logits, temperature)


def scaled_logits(logits: Tensor, temperature: Tensor) -> Tensor:
    """Twin of `segcal.functional.division.scaled_logits`, in float32."""
    return _run(_quotients, logits, temperature)


def _run(kernel: Any, logits: Tensor, temperature: Tensor) -> Tensor:
    if not (logits.dtype == temperature.dtype == torch.float32 and logits.numel()):
        return DECLINED
    found, odd = np.empty(logits.shape, np.float32), np.zeros(1, np.bool_)
    for image, own, out in zip(logits, temperature, found, strict=True):
        z = as_numpy(image).reshape(len(image), -1)
        one = all(stride == 0 or length == 1 for stride, length in zip(own.stride(), own.shape, strict=True))
        heat = as_numpy(own[(slice(0, 1),) * own.ndim] if one else own).reshape(-1)
        over_pixels(kernel, z.shape[1], z, heat, np.float32(0), out.reshape(z.shape), odd)
    return DECLINED if odd[0] else torch.from_numpy(found)  # the plain form refuses numbers that are not finite


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
    """Twin of `segcal.functional.division.standardised_log_probabilities`, in float32."""
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
    """Twin of `segcal.functional.division.scaled_nll`, in float32."""
    if not (logits.dtype == temperature.dtype == torch.float32 and logits.numel()):
        return DECLINED  # type: ignore[return-value]
    z, y = as_numpy(logits).reshape(*logits.shape[:2], -1), as_numpy(labels).reshape(len(labels), -1)
    heat = as_numpy(temperature).reshape(len(temperature), -1)
    nll, slope = np.empty(y.shape, np.float32), np.empty(y.shape, np.float32)
    for k in range(len(z)):
        over_pixels(_nll, z.shape[2], z[k], y[k], heat[k], nll[k], slope[k])
    return torch.from_numpy(nll).view(labels.shape), torch.from_numpy(slope).view(labels.shape)
