"""Context features and the temperature they give, compiled for the CPU: one pass over the logits, then means in boxes.

The mean over a box is linear, so that only the weighted sum of the features with the same window goes through it when a
temperature is computed. Images and volumes are treated as volumes `[D, H, W]`: an image has lines of one plane each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.constants import DOUBLINGS, LEAST_TEMPERATURE, LOWEST, MARGIN_CAP, WINDOWS
from segcal.kernels.cpu.boxes import STRIP, box_scratch, mean_along_columns, mean_in_plane, strip_sums
from segcal.kernels.cpu.compiling import BLOCK, as_numpy, compiled, exp_float32, log_above_one, over_pixels, run_all
from segcal.kernels.dispatch import DECLINED
from segcal.types import Array

_CAP, _LOWEST = np.float32(MARGIN_CAP), np.float32(LOWEST)
_NARROW, _BROAD = WINDOWS


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


class _Maps(NamedTuple):
    """The features of each pixel `[D, H, W]` before any mean is taken."""

    entropy: Array
    margin: Array
    distance: Array
    near: Array
    predicted: Array


def _as_volume(size: Sequence[int]) -> tuple[int, int, int]:
    """Return a size as `[D, H, W]`; the lines of an image are planes, so that they are divided between threads."""
    depth, *height, width = (1, *size) if len(size) == 1 else size
    return depth, *(height or [1]), width  # type: ignore[return-value]


def _describe_image(image: Tensor) -> _Maps:
    """Return the maps of one image `[L, *S]`."""
    scores, size = as_numpy(image).reshape(len(image), -1), _as_volume(image.shape[1:])
    kinds = np.float32, np.float32, np.int16 if len(image) < 1 << 15 else np.int32
    entropy, margin, predicted = (np.empty(size, kind) for kind in kinds)
    over_pixels(_describe, scores.shape[1], scores, *(values.reshape(-1) for values in (entropy, margin, predicted)))
    near = _changes(predicted)
    return _Maps(entropy, margin, _free_boxes(near), near, predicted)


def _changes(predicted: Array) -> Array:
    """Return, as 1 and 0, the pixels that have a neighbour along an axis with another label."""
    near = np.zeros(predicted.shape, np.uint8)
    for axis in range(predicted.ndim):
        labels, marks = (values.swapaxes(axis, 0) for values in (predicted, near))
        differs = labels[1:] != labels[:-1]
        marks[1:] |= differs
        marks[:-1] |= differs
    return near


def _free_boxes(near: Array) -> Array:
    """Count the boxes that reach 0, 1, 3, 7 and 15 pixels around each pixel of `[D, H, W]` and hold no boundary.

    Three shifted copies of a box make the next box. Lines have gaps between them that no shift crosses, so that a shift
    along them is one pass over all lines.
    """
    depth, height, width = near.shape
    gap = 1 << (DOUBLINGS - 1)  # the largest shift
    level, wider = np.zeros((2, depth, height, width + gap), np.uint8)
    level[..., :width] = near
    free: Array = (1 + DOUBLINGS) - level
    axes = [axis for axis in (2, 1, 0) if near.shape[axis] > 1]
    for doubling in range(DOUBLINGS):
        shift = 1 << doubling
        for axis in axes:
            here, there = (each.reshape(-1) if axis == 2 else each.swapaxes(axis, 0) for each in (level, wider))
            there[:shift] = here[:shift]
            np.bitwise_or(here[shift:], here[:-shift], out=there[shift:])
            there[:-shift] |= here[shift:]
            if axis == 2:
                wider[..., width:] = 0
            level, wider = wider, level
        free -= level
    return free[..., :width]


def _in_parts(kernel: Callable[..., None], count: int, *arguments: Any) -> None:
    """Run `kernel(*arguments, start, stop)` over ranges of `count`, one per thread."""
    parts = min(torch.get_num_threads(), max(count, 1))
    edges = [count * k // parts for k in range(parts + 1)]
    run_all([partial(kernel, *arguments, first, last) for first, last in pairwise(edges)])


def _strips(values: Array) -> int:
    """Return the number of strips of columns of `[D, H, W]`, whose columns go from plane to plane."""
    columns: int = values[0].size
    return -(-columns // STRIP)


@compiled
def _mean_in_planes(values: Array, width: int, tall: bool, start: int, stop: int) -> None:
    """Replace planes `start` to `stop` of `[D, H, W]` by the means in them."""
    scratch = box_scratch(values.shape[1], values.shape[2])
    for z in range(start, stop):
        mean_in_plane(values[z], width, tall, scratch, values[z])


@compiled
def _mean_across_planes(values: Array, width: int, start: int, stop: int) -> None:
    """Replace the columns of `[D, N]` in strips `start` to `stop` by their means."""
    mean_along_columns(values, width, box_scratch(values.shape[0], STRIP), values, start, stop)


def _replace_by_means(values: Array, width: int, dims: int) -> None:
    """Replace `[D, H, W]` by the means over boxes; see `_box_mean` in `segcal.functional.context`."""
    _in_parts(_mean_in_planes, len(values), values, width, dims == 3)
    if dims > 1:
        _in_parts(_mean_across_planes, _strips(values), values.reshape(len(values), -1), width)


def context_features(logits: Tensor) -> Tensor:
    """Twin of `segcal.functional.context.context_features`, in float32."""
    dims = logits.ndim - 2
    if not logits.numel() or dims > 3:
        return DECLINED
    result = np.empty((len(logits), 3 + 3 * len(WINDOWS), *_as_volume(logits.shape[2:])), np.float32)
    for image, out in zip(logits, result, strict=True):
        maps = _describe_image(image)
        out[0], out[1], out[2] = maps.entropy, maps.margin, maps.distance
        for k, width in enumerate(WINDOWS):
            for j, values in enumerate((maps.entropy, maps.margin, maps.near)):
                mean = out[3 + 3 * k + j]
                mean[...] = values
                _replace_by_means(mean, width, dims)
    return _as_precise_as(logits, result.reshape(len(logits), -1, *logits.shape[2:]))


@compiled
def _combine(
    entropy: Array, margin: Array, distance: Array, near: Array, predicted: Array, weights: Array, offsets: Array,
    own: Array, narrow: Array, broad: Array,
) -> None:  # fmt: skip
    """Compute what each pixel of `[N]` adds to its own log-temperature, and to that of the pixels in both boxes."""
    a, b, c = weights[0], weights[1], weights[2]
    d, e, f = weights[3], weights[4], weights[5]
    g, h, k = weights[6], weights[7], weights[8]
    for i in range(own.shape[0]):
        heat, apart, edge = entropy[i], margin[i], np.float32(near[i])
        own[i] = a * heat + b * apart + c * np.float32(distance[i])
        narrow[i] = d * heat + e * apart + f * edge
        broad[i] = g * heat + h * apart + k * edge
    for i in range(own.shape[0]):
        own[i] += offsets[predicted[i]]


@compiled
def _combine_planes(
    entropy: Array, margin: Array, distance: Array, near: Array, predicted: Array, weights: Array, offsets: Array,
    tall: bool, own: Array, narrow: Array, broad: Array, start: int, stop: int,
) -> None:  # fmt: skip
    """Compute the shares of the log-temperature of planes `start` to `stop`, with the means in these planes."""
    scratch = box_scratch(own.shape[1], own.shape[2])
    for z in range(start, stop):
        _combine(
            entropy[z].ravel(), margin[z].ravel(), distance[z].ravel(), near[z].ravel(), predicted[z].ravel(),
            weights, offsets, own[z].ravel(), narrow[z].ravel(), broad[z].ravel(),
        )  # fmt: skip
        mean_in_plane(narrow[z], _NARROW, tall, scratch, narrow[z])
        mean_in_plane(broad[z], _BROAD, tall, scratch, broad[z])


@compiled
def _finish(own: Array, low: float, high: float, least: float, softness: float, result: Array) -> None:
    """Apply the floor to log-temperatures, which is soft unless `softness` is 0, and the bounds; changes `own`."""
    if softness > 0:
        for i in range(own.shape[0]):
            above = own[i] - least
            rest = log_above_one(1.0 + np.float64(exp_float32(-abs(above) / softness)))
            own[i] = least + max(above, np.float32(0)) + softness * np.float32(rest)
    for i in range(own.shape[0]):
        result[i] = min(max(exp_float32(max(own[i], least)), low), high)


@compiled
def _finish_strips(
    own: Array, narrow: Array, broad: Array, widths: tuple[int, int], low: float, high: float, least: float,
    softness: float, result: Array, start: int, stop: int,
) -> None:  # fmt: skip
    """Add up the log-temperatures of strips `start` to `stop` of `[D, N]`, with the means across planes, and finish.

    A signal has no planes to average over; its widths are 1.
    """
    rows, columns = own.shape
    one, other = box_scratch(rows, STRIP), box_scratch(rows, STRIP)
    of_narrow, of_broad = np.float32(1 / widths[0]), np.float32(1 / widths[1])
    for strip in range(start, stop):
        first = strip * STRIP
        n = min(STRIP, columns - first)
        near = strip_sums(narrow, first, n, widths[0], one)
        far = strip_sums(broad, first, n, widths[1], other)
        for k in range(rows):
            line, a, b = own[k, first : first + n], near[k], far[k]
            for i in range(n):
                line[i] += a[i] * of_narrow + b[i] * of_broad
            _finish(line, low, high, least, softness, result[k, first : first + n])


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
    dims = logits.ndim - 2
    if not logits.numel() or dims > 3:
        return DECLINED
    each, moved = as_numpy(weights.float()), as_numpy((offsets + intercept).float())
    least = np.log(max(float(floor), LEAST_TEMPERATURE))
    with np.errstate(over="ignore"):  # infinity, as in PyTorch
        limits = [np.float32(number) for number in (*bounds, least, float(softness))]
    result, across = np.empty((len(logits), 1, *logits.shape[2:]), np.float32), WINDOWS if dims > 1 else (1, 1)
    for image, out in zip(logits, result, strict=True):
        maps = _describe_image(image)
        depth, shares = len(maps.entropy), np.empty((3, *maps.entropy.shape), np.float32)
        _in_parts(_combine_planes, depth, *maps, each, moved, dims == 3, *shares)
        flat = [values.reshape(depth, -1) for values in (*shares, out)]
        _in_parts(_finish_strips, _strips(shares[0]), *flat[:3], across, *limits, flat[3])
    return _as_precise_as(logits, result)


def _as_precise_as(logits: Tensor, result: Array) -> Tensor:
    """Return float32 results as float64 for logits in float64, as the plain form does."""
    found = torch.from_numpy(result)
    return found.double() if logits.dtype == torch.float64 else found
