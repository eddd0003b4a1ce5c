"""Context features and the temperature they give, compiled for the CPU: one pass over the logits, then sums in boxes.

A box of 9 or 25 is a sum of boxes of 1, 8 and 16, which result from doubling, along one axis after the other: a few
vector additions per pixel, in an order that depends only on the place in the window. So slabs and whole images give the
same bits, which a running sum would not. The mean over a box is linear, so that only the weighted sum of the features
with the same window goes through it when a temperature is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.constants import DOUBLINGS, LEAST_TEMPERATURE, LOWEST, MARGIN_CAP, WINDOWS
from segcal.kernels.cpu.compiling import (
    BLOCK,
    as_numpy,
    compiled,
    exp_float32,
    log_above_one,
    over_pixels,
    run_all,
)
from segcal.kernels.cpu.geometry import near_boundary
from segcal.kernels.dispatch import DECLINED
from segcal.types import Array

_STRIP = 64  # columns whose lines stay in the cache
_CAP, _LOWEST = np.float32(MARGIN_CAP), np.float32(LOWEST)


@compiled
def _describe(logits: Array, entropy: Array, margin: Array, predicted: Array, start: int, stop: int) -> None:
    classes = logits.shape[0]
    top, second = np.empty(BLOCK, logits.dtype), np.empty(BLOCK, logits.dtype)
    winner = np.empty(BLOCK, np.int32)
    total, weighted = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        first = logits[0, at : at + n]
        for i in range(n):
            top[i] = first[i]
            second[i] = -np.inf
            winner[i] = 0
        for c in range(1, classes):
            row = logits[c, at : at + n]
            for i in range(n):
                value, highest = row[i], top[i]
                wins = value > highest
                loser = highest if wins else value
                second[i] = max(second[i], loser)
                winner[i] = c if wins else winner[i]
                top[i] = value if wins else highest
        total[:] = np.float32(0)
        weighted[:] = np.float32(0)
        for c in range(classes):
            row = logits[c, at : at + n]
            for i in range(n):
                below = max(np.float32(row[i] - top[i]), _LOWEST)
                e = exp_float32(below)  # type: ignore[arg-type]
                total[i] += e
                weighted[i] += e * below
        out = entropy[at : at + n], margin[at : at + n], predicted[at : at + n]
        for i in range(n):
            log_total = log_above_one(np.float64(max(total[i], np.float32(1))))
            out[0][i] = np.float32(log_total) - weighted[i] / total[i]
            out[1][i] = min(np.float32(top[i] - second[i]), _CAP)
            out[2][i] = winner[i]


@compiled
def _mirrored(at: int, length: int) -> int:
    """Return the place to read for one beyond an end of an axis; see `segcal.functional.context.reflected`."""
    period = max(2 * (length - 1), 1)
    place = at % period
    return min(place, 2 * (length - 1) - place)


@compiled
def _box_lines(values: Array, width: int, result: Array, start: int, stop: int) -> None:
    """Compute the mean along the last axis of lines `start` to `stop` of `[R, n]`."""
    length, reach = values.shape[1], width // 2
    sums = np.empty(length + 2 * reach, np.float32)
    scale = np.float32(1 / width)
    for line in range(start, stop):
        source, out = values[line], result[line]
        inner = sums[reach : reach + length]
        for i in range(length):
            inner[i] = source[i]
        for k in range(reach):
            sums[k] = source[_mirrored(k - reach, length)]
            sums[reach + length + k] = source[_mirrored(length + k, length)]
        for i in range(length):
            out[i] = np.float32(0)
        taken, size = 0, 1
        while size <= width:
            if width & size:
                part = sums[taken : taken + length]
                for i in range(length):
                    out[i] += part[i]
                taken += size
            if 2 * size <= width:
                here, there = sums[: sums.shape[0] - size], sums[size:]
                for i in range(here.shape[0]):
                    here[i] = here[i] + there[i]
            size *= 2
        for i in range(length):
            out[i] *= scale


@compiled
def _windows(sums: Array, width: int, first: int, n: int, result: Array) -> None:
    """Write the mean of each `width` lines of `sums` into `n` columns of `result` from `first` on; changes `sums`."""
    length, scale = result.shape[0], np.float32(1 / width)
    taken, size = 0, 1
    while size <= width:
        if width & size:
            for k in range(length):
                out, part = result[k, first : first + n], sums[k + taken]
                for i in range(n):
                    out[i] = out[i] + part[i] if taken else part[i]
            taken += size
        for k in range(sums.shape[0] - size):
            here, there = sums[k], sums[k + size]
            for i in range(n):
                here[i] = here[i] + there[i]
        size *= 2
    for k in range(length):
        out = result[k, first : first + n]
        for i in range(n):
            out[i] *= scale


@compiled
def _box_strips(values: Array, width: int, result: Array, start: int, stop: int) -> None:
    """Compute the mean along the middle axis of `[A, n, K]` for strips `start` to `stop` of columns."""
    length, columns, reach = values.shape[1], values.shape[2], width // 2
    each = (columns + _STRIP - 1) // _STRIP
    sums = np.empty((length + 2 * reach, _STRIP), np.float32)
    for strip in range(start, stop):
        a, first = strip // each, strip % each * _STRIP
        n = min(_STRIP, columns - first)
        for k in range(length + 2 * reach):
            source, target = values[a, _mirrored(k - reach, length), first : first + n], sums[k]
            for i in range(n):
                target[i] = source[i]
        _windows(sums, width, first, n, result[a])


def _in_parts(kernel: Callable[..., None], count: int, *arguments: Any) -> None:
    """Run `kernel(*arguments, start, stop)` over ranges of `count`, one per thread."""
    parts = min(torch.get_num_threads(), max(count, 1))
    edges = [count * k // parts for k in range(parts + 1)]
    run_all([partial(kernel, *arguments, first, last) for first, last in pairwise(edges)])


def _box_mean(values: Array, width: int) -> Array:
    """Return the mean of `[*S]` over boxes; see `_box_mean` in `segcal.functional.context`."""
    size = values.shape
    for axis in range(len(size) - 1):
        folded = (math.prod(size[:axis]), size[axis], math.prod(size[axis + 1 :]))
        result = np.empty(folded, np.float32)
        strips = folded[0] * -(-folded[2] // _STRIP)
        _in_parts(_box_strips, strips, values.reshape(folded), width, result)
        values = result
    lines = values.reshape(-1, size[-1])
    result = np.empty(lines.shape, np.float32)
    _in_parts(_box_lines, len(lines), lines, width, result)
    return result.reshape(size)


class _Maps(NamedTuple):
    """The features of each pixel `[*S]` before any mean is taken."""

    entropy: Array
    margin: Array
    distance: Array
    near: Array
    predicted: Array


def _maps(image: Array) -> _Maps:
    """Compute the maps of one image `[L, *S]`."""
    size = image.shape[1:]
    flat = image.reshape(len(image), -1)
    entropy, margin = (np.empty(flat.shape[1], np.float32) for _ in range(2))
    predicted = np.empty(flat.shape[1], np.int16 if len(image) < 1 << 15 else np.int32)
    over_pixels(_describe, flat.shape[1], flat, entropy, margin, predicted)
    near = near_boundary(torch.from_numpy(predicted.reshape(1, *size)), width=1)[0].numpy().view(np.uint8)
    return _Maps(entropy.reshape(size), margin.reshape(size), _distance(near), near, predicted.reshape(size))


def _distance(near: Array) -> Array:
    """Return the distance of `segcal.functional.context`: three copies of a box, shifted, make the next box."""
    level, total = near, near.copy()
    for doubling in range(DOUBLINGS):
        shift = 1 << doubling
        for axis in range(near.ndim):
            rows = level.reshape(math.prod(near.shape[:axis]), near.shape[axis], -1)
            wider = rows.copy()
            wider[:, shift:] |= rows[:, :-shift]
            wider[:, :-shift] |= rows[:, shift:]
            level = wider.reshape(near.shape)
        total += level
    return np.uint8(1 + DOUBLINGS) - total


def context_features(logits: Tensor) -> Tensor:
    """Twin of `segcal.functional.context.context_features`, in float32."""
    if not logits.numel():
        return DECLINED
    batch = as_numpy(logits)
    result = np.empty((len(batch), 3 + 3 * len(WINDOWS), *batch.shape[2:]), np.float32)
    for image, out in zip(batch, result, strict=True):
        maps = _maps(image)
        out[0], out[1], out[2] = maps.entropy, maps.margin, maps.distance
        for k, width in enumerate(WINDOWS):
            for j, values in enumerate((maps.entropy, maps.margin, maps.near.astype(np.float32))):
                out[3 + 3 * k + j] = _box_mean(values, width)
    return _as_precise_as(logits, result)


@compiled
def _combine(
    entropy: Array, margin: Array, distance: Array, near: Array, predicted: Array, weights: Array, offsets: Array,
    own: Array, narrow: Array, broad: Array, start: int, stop: int,
) -> None:  # fmt: skip
    """Compute what each pixel adds to its own log-temperature, and to that of the pixels in both boxes around it."""
    a, b, c = weights[0], weights[1], weights[2]
    d, e, f = weights[3], weights[4], weights[5]
    g, h, k = weights[6], weights[7], weights[8]
    for i in range(start, stop):
        heat, apart, edge = entropy[i], margin[i], np.float32(near[i])
        own[i] = a * heat + b * apart + c * np.float32(distance[i])
        narrow[i] = d * heat + e * apart + f * edge
        broad[i] = g * heat + h * apart + k * edge
    for i in range(start, stop):
        own[i] += offsets[predicted[i]]


@compiled
def _finish(
    own: Array, narrow: Array, broad: Array, low: float, high: float, least: float, softness: float, result: Array,
    start: int, stop: int,
) -> None:  # fmt: skip
    """Add up the log-temperatures, apply the floor, which is soft unless `softness` is 0, and the bounds."""
    for i in range(start, stop):
        own[i] += narrow[i] + broad[i]
    if softness > 0:
        for i in range(start, stop):
            above = own[i] - least
            rest = log_above_one(1.0 + np.float64(exp_float32(-abs(above) / softness)))
            own[i] = least + max(above, np.float32(0)) + softness * np.float32(rest)
    for i in range(start, stop):
        result[i] = min(max(exp_float32(max(own[i], least)), low), high)


def context_temperature(
    logits: Tensor,
    weights: Tensor,
    intercept: Tensor,
    offsets: Tensor,
    bounds: tuple[float, float],
    floor: Tensor,
    softness: Tensor,
) -> Tensor:
    """Twin of `segcal.functional.context.context_temperature`, in float32."""
    if not logits.numel():
        return DECLINED
    batch = as_numpy(logits)
    each, moved = as_numpy(weights.float()), as_numpy((offsets + intercept).float())
    least = np.log(max(float(floor), LEAST_TEMPERATURE))
    limits = [np.float32(number) for number in (*bounds, least, float(softness))]
    result = np.empty((len(batch), 1, *batch.shape[2:]), np.float32)
    for image, out in zip(batch, result, strict=True):
        maps = [values.reshape(-1) for values in _maps(image)]
        own, narrow, broad = (np.empty(maps[0].size, np.float32) for _ in range(3))
        over_pixels(_combine, own.size, *maps, each, moved, own, narrow, broad)
        size, both = image.shape[1:], zip((narrow, broad), WINDOWS, strict=True)
        boxes = [_box_mean(values.reshape(size), width).reshape(-1) for values, width in both]
        over_pixels(_finish, own.size, own, *boxes, *limits, out.reshape(-1))
    return _as_precise_as(logits, result)


def _as_precise_as(logits: Tensor, result: Array) -> Tensor:
    """Return float32 results as float64 for logits in float64, as the plain form does."""
    found = torch.from_numpy(result)
    return found.double() if logits.dtype == torch.float64 else found
