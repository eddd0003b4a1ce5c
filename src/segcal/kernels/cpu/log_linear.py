"""The sums of `log_linear` in one fused pass on the CPU, in float64."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from segcal.kernels.constants import LOSS_HEAD
from segcal.kernels.cpu.compiling import (
    BLOCK,
    as_numpy,
    compiled,
    exp_below_zero,
    log_above_one,
    over_pixels,
    summing,
)
from segcal.kernels.cpu.pixels import largest
from segcal.types import Array


@compiled
def _slopes(
    logits: Array, labels: Array, at: int, n: int, top: Array, cold: Array, brier: float, found: Array, scratch: Array
) -> None:
    """Compute NLL, loss, first and second derivative in log T, `found[:4]`, of `n` pixels from `at` on."""
    classes = logits.shape[0]
    total, mean, square = scratch[0], scratch[1], scratch[2]
    fit, tilt, twist = scratch[3], scratch[4], scratch[5]
    scratch[:6] = 0.0
    for c in range(classes):
        row = logits[c, at : at + n]
        for i in range(n):
            below = np.float64(row[i]) - np.float64(top[i])
            e = exp_below_zero(cold[i] * below)
            total[i] += e
            mean[i] += e * below
            square[i] += e * below * below
    if brier > 0:
        for c in range(classes):
            row = logits[c, at : at + n]
            for i in range(n):
                below = np.float64(row[i]) - np.float64(top[i])
                e = exp_below_zero(cold[i] * below)
                fit[i] += e * e
                tilt[i] += e * e * below
                twist[i] += e * e * below * below
    for i in range(n):
        inverse = 1.0 / total[i]
        mean[i] *= inverse
        square[i] = max(square[i] * inverse - mean[i] * mean[i], 0.0)
        total[i] = log_above_one(total[i])
        fit[i] *= inverse * inverse
        tilt[i] *= inverse * inverse
        twist[i] *= inverse * inverse
    for i in range(n):
        label = max(labels[at + i], 0)
        truth = np.float64(logits[label, at + i]) - np.float64(top[i])
        found[0, i] = total[i] - cold[i] * truth
        found[1, i] = found[0, i]
        apart = truth - mean[i]
        found[2, i] = cold[i] * apart
        found[3, i] = cold[i] * cold[i] * square[i] - found[2, i]
        if brier > 0:
            prob = exp_below_zero(cold[i] * truth - total[i])
            found[1, i] += brier * (fit[i] - 2.0 * prob + 1.0)
            spread = tilt[i] - mean[i] * fit[i] - prob * apart
            found[2, i] -= 2.0 * brier * cold[i] * spread
            bend = max(twist[i] - 2.0 * mean[i] * tilt[i] + mean[i] * mean[i] * fit[i], 0.0)
            turned = 2.0 * bend - prob * apart * apart - square[i] * (fit[i] - prob)
            found[3, i] += 2.0 * brier * cold[i] * (spread + cold[i] * turned)


@summing
def _dot(one: Array, other: Array, n: int) -> float:
    total = 0.0
    for i in range(n):
        total += one[i] * other[i]
    return total


@compiled
def _curve(bend: Array, known: Array, winner: Array, n: int, classes: int, square: Array) -> None:
    """Add the products of the features of `n` pixels; the lower triangle, which `loss_sums` mirrors."""
    many, numbers = known.shape[0], known.shape[0] + classes
    weighted, present = np.empty(BLOCK), np.zeros(classes, np.int64)
    for j in range(many):
        row = known[j]
        for i in range(n):
            weighted[i] = bend[i] * row[i]
        for k in range(j + 1):
            square[j * numbers + k] += _dot(weighted, known[k], n)
    for i in range(n):
        present[winner[i]] += 1
    for c in range(classes):
        if present[c]:  # few are, among neighbours
            for i in range(n):
                weighted[i] = bend[i] if winner[i] == c else 0.0
            own = many + c
            for j in range(many):
                square[own * numbers + j] += _dot(weighted, known[j], n)
            square[own * numbers + own] += _dot(weighted, known[0], n)


@compiled
def _soften(heat: Array, n: int, least: float, softness: float, below: Array, gate: Array, turn: Array) -> None:
    """Apply the soft floor to log-temperatures in place: its first two derivatives, and which are below the floor."""
    for i in range(n):
        x = (heat[i] - least) / softness
        power = exp_below_zero(-abs(x))
        below[i] = 1.0 if x < 0 else 0.0
        gate[i] = (power if x < 0 else 1.0) / (1.0 + power)
        turn[i] = gate[i] * (1.0 - gate[i]) / softness
        heat[i] = least + softness * (max(x, 0.0) + log_above_one(1.0 + power))


@compiled
def _sums(
    logits: Array, labels: Array, features: Array, point: Array, low: float, high: float, least: float,
    softness: float, brier: float, curvature: bool, partial: Array, start: int, stop: int,
) -> None:  # fmt: skip
    many, numbers, classes = 1 + features.shape[0], point.shape[0], logits.shape[0]
    top, winner = np.empty(BLOCK, logits.dtype), np.empty(BLOCK, np.int32)
    heat, cold, inside = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    below, gate, turn = np.zeros(BLOCK), np.ones(BLOCK), np.zeros(BLOCK)
    found, scratch, known = np.empty((4, BLOCK)), np.empty((6, BLOCK)), np.ones((many, BLOCK))
    offsets, coldest = point[many:], np.exp(-low)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        largest(logits, at, n, top, winner)
        for i in range(n):
            heat[i] = point[0] + offsets[winner[i]]
        for j in range(1, many):
            row, copy, weight = features[j - 1, at : at + n], known[j], point[j]
            for i in range(n):
                copy[i] = np.float64(row[i])
                heat[i] += weight * copy[i]
        if softness > 0:
            _soften(heat, n, least, softness, below, gate, turn)
        for i in range(n):
            inside[i] = 1.0 if (heat[i] > low) & (heat[i] < high) else 0.0
            cold[i] = exp_below_zero(low - min(max(heat[i], low), high)) * coldest
        _slopes(logits, labels, at, n, top, cold, brier, found, scratch)
        out = partial[at // BLOCK]
        for i in range(n):
            counts = 1.0 if labels[at + i] >= 0 else 0.0
            found[3, i] = (gate[i] * gate[i] * found[3, i] + turn[i] * found[2, i]) * inside[i] * counts
            found[2, i] *= gate[i] * inside[i] * counts
            out[0] += counts
            out[1] += counts * found[0, i]
            out[2] += counts * found[1, i]
            out[3] += counts * (1.0 - inside[i])
            out[4] += counts * below[i]
            out[LOSS_HEAD + many + winner[i]] += found[2, i]
        for j in range(many):
            out[LOSS_HEAD + j] += _dot(found[2], known[j], n)
        if curvature:
            _curve(found[3], known, winner, n, classes, out[LOSS_HEAD + numbers :])


def loss_sums(
    logits: Tensor,
    labels: Tensor,
    features: Tensor,
    point: Array,
    bounds: tuple[float, float],
    *,
    floor: tuple[float, float] = (0.0, 0.0),
    brier: float = 0.0,
    curvature: bool = False,
) -> Array:
    """Twin of `segcal.functional.log_linear.loss_sums`."""
    z, known = as_numpy(logits), as_numpy(features)
    count, numbers = z.shape[1], len(point)
    low, high = (float(np.log(bound)) for bound in bounds)
    softness = float(floor[1])
    least = float(np.log(floor[0])) if softness > 0 else 0.0
    partial = np.zeros((-(-count // BLOCK), LOSS_HEAD + numbers + (numbers**2 if curvature else 0)))
    settings = (low, high, least, softness, float(brier), curvature)
    over_pixels(_sums, count, z, as_numpy(labels), known, np.asarray(point), *settings, partial)
    total = partial.sum(axis=0)  # numpy sums pairwise
    if curvature:
        square = total[LOSS_HEAD + numbers :].reshape(numbers, numbers)
        square[:] = np.tril(square) + np.tril(square, -1).T
    return total  # type: ignore[no-any-return]
