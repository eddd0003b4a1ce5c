"""The temperature tree on the CPU: convolutions and gates, fused, tile by tile in the cache.

A convolution with dilation 2 splits into plain ones, one per parity of the coordinates. Across the lines of an image
each of these is computed by Winograd's minimal filtering F(4, 5) (Winograd 1980; Lavin and Gray 2016): four lines of
results from eight lines of input, with 8 products instead of 20; in 2D along y, in 3D along z and y. Along the lines it
is computed directly, so that vectors hold neighbouring pixels. Leaves and gates are mixed while they are in the cache,
and only the result is written to memory.

This costs precision: in float32 the error is about 1e-6 (2D) or 1e-5 (3D) of the sum of absolute products, where that
of a plain convolution is about 1e-7.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.cpu.compiling import as_float32, as_numpy, compiled, exp_float32, inlined, run_all
from segcal.kernels.dispatch import DECLINED
from segcal.types import Array

_REACH = 4
_TILE, _LINES = 4, 8  # lines of results, and of input, of one tile
_SPAN_2D, _SPAN_3D = 520, 288  # columns at a time, at most
_GROUP = 8  # channels at a time
_CACHE = 900_000  # bytes of intermediate results that the second-level cache holds
_ROOM = 32  # columns beyond those: 4 on either side, and what makes vectors whole
_NODES = 10  # four leaves, four gates, the leaf of the image, and one to make its pair whole
_INFINITE = 0x7F800000  # the bits of infinity, above which are those of NaN

_FILTER = np.array(
    [
        [-1, 0, 0, 0, 0],
        [-2 / 9, -2 / 9, -2 / 9, -2 / 9, -2 / 9],
        [-2 / 9, 2 / 9, -2 / 9, 2 / 9, -2 / 9],
        [1 / 90, 1 / 45, 2 / 45, 4 / 45, 8 / 45],
        [1 / 90, -1 / 45, 2 / 45, -4 / 45, 8 / 45],
        [32 / 45, 16 / 45, 8 / 45, 4 / 45, 2 / 45],
        [32 / 45, -16 / 45, 8 / 45, -4 / 45, 2 / 45],
        [0, 0, 0, 0, 1],
    ]
)
"""The matrix G of F(4, 5) at the points 0, 1, -1, 2, -2, 1/2, -1/2 and infinity."""


@compiled
def _place(at: int, length: int, mirrored: bool) -> int:
    """Return the place to read for one up to 4 beyond an edge: its mirror image, or the edge itself.

    Tiles reach further than that beyond the last line, for results that are not used.
    """
    if not mirrored:
        return min(max(at, 0), length - 1)
    at = min(abs(at), length - 1 + _REACH)
    return 2 * (length - 1) - at if at >= length else at


@compiled
def _whole(n: int) -> int:
    """Round a number of columns up to whole vectors, which are faster than the remainder of one."""
    return (n + 15) // 16 * 16


@compiled
def _load(line: Array, first: int, n: int, mirrored: bool, target: Array) -> None:
    """Copy `n` columns of a line from `first` on, and 4 more on either side, reflected at its ends."""
    width = line.shape[0]
    start, stop = max(first - _REACH, 0), min(first + n + _REACH, width)
    source, inner = line[start:stop], target[start - (first - _REACH) :]
    for i in range(source.shape[0]):
        inner[i] = source[i]
    for k in range(_REACH):
        if first - _REACH + k < 0:
            target[k] = line[_place(first - _REACH + k, width, mirrored)]
        if first + n + k >= width:
            target[_REACH + n + k] = line[_place(first + n + k, width, mirrored)]


# offsets within arrays are constants, here and below: only then does the compiler vectorize


@inlined
def _forward(lines: Array, step: int, found: Array, stride: int, n: int) -> None:
    """Transform eight lines, `step` apart, to eight, `stride` apart (the matrix B^T)."""
    quarter, half, two, four, five = np.float32(0.25), np.float32(0.5), np.float32(2), np.float32(4), np.float32(5)
    for i in range(n):
        a, b, c, d = lines[i], lines[step + i], lines[2 * step + i], lines[3 * step + i]
        e, f, g, h = lines[4 * step + i], lines[5 * step + i], lines[6 * step + i], lines[7 * step + i]
        even, odd = c + g - np.float32(4.25) * e, b + f - np.float32(4.25) * d
        even_2, odd_2 = quarter * c - np.float32(1.25) * e + g, half * b - np.float32(2.5) * d + two * f
        even_half, odd_half = four * c - five * e + g, two * b - np.float32(2.5) * d + half * f
        found[i] = np.float32(5.25) * (c - e) + g - a
        found[stride + i] = even + odd
        found[2 * stride + i] = even - odd
        found[3 * stride + i] = even_2 + odd_2
        found[4 * stride + i] = even_2 - odd_2
        found[5 * stride + i] = even_half + odd_half
        found[6 * stride + i] = even_half - odd_half
        found[7 * stride + i] = np.float32(5.25) * (d - f) + h - b


@inlined
def _backward(lines: Array, step: int, found: Array, stride: int, n: int) -> None:
    """Transform eight lines, `step` apart, to four, `stride` apart (the matrix A^T)."""
    for i in range(n):
        one, minus = lines[step + i], lines[2 * step + i]
        two, minus_2 = lines[3 * step + i], lines[4 * step + i]
        half, minus_half = lines[5 * step + i], lines[6 * step + i]
        a, b, c = one + minus, two + minus_2, half + minus_half
        d, e, f = one - minus, two - minus_2, half - minus_half
        found[i] = lines[i] + a + b + c
        found[stride + i] = d + np.float32(2) * e + np.float32(0.5) * f
        found[2 * stride + i] = a + np.float32(4) * b + np.float32(0.25) * c
        found[3 * stride + i] = d + np.float32(8) * e + np.float32(0.125) * f + lines[7 * step + i]


@compiled
def _filter_two(
    lines: Array, step: int, weights: Array, first: int, last: int, found: Array, span: int, n: int
) -> None:
    """Add channels, each filtered along its line, to two nodes, `span` apart; weights are `[C, 2, 5]`.

    Two, because more weights do not fit the registers. The first channel overwrites what was there.
    """
    a, b = found[:n], found[span : span + n]
    for channel in range(first, last):
        w = weights[channel]
        a0, a1, a2, a3, a4 = w[0, 0], w[0, 1], w[0, 2], w[0, 3], w[0, 4]
        b0, b1, b2, b3, b4 = w[1, 0], w[1, 1], w[1, 2], w[1, 3], w[1, 4]
        line = lines[(channel - first) * step : (channel - first) * step + n + 2 * _REACH]
        if channel == 0:
            for i in range(n):
                p, q, r, s, t = line[i], line[i + 2], line[i + 4], line[i + 6], line[i + 8]
                a[i] = a0 * p + a1 * q + a2 * r + a3 * s + a4 * t
                b[i] = b0 * p + b1 * q + b2 * r + b3 * s + b4 * t
        else:
            for i in range(n):
                p, q, r, s, t = line[i], line[i + 2], line[i + 4], line[i + 6], line[i + 8]
                a[i] = a[i] + a0 * p + a1 * q + a2 * r + a3 * s + a4 * t
                b[i] = b[i] + b0 * p + b1 * q + b2 * r + b3 * s + b4 * t


@compiled
def _sigmoid(x: float) -> float:
    """Return 1 / (1 + exp(-x)) in float32."""
    return np.float32(1) / (np.float32(1) + exp_float32(-x))  # type: ignore[return-value]


@inlined
def _mix(nodes: Array, span: int, bias: Array, with_image: bool, least: float, result: Array) -> int:
    """Compute the root of each pixel (Eq. B.2), rectified and increased by `least`; nodes lie `span` apart.

    A negative `least` leaves the root as it is. Returns the bits of the largest magnitude, which reveal infinities.
    """
    n = result.shape[0]
    for i in range(n):
        left, right = nodes[i] + bias[0], nodes[span + i] + bias[1]
        gate = _sigmoid(nodes[4 * span + i] + bias[4])
        result[i] = right + gate * (left - right)
    for i in range(n):
        left, right = nodes[2 * span + i] + bias[2], nodes[3 * span + i] + bias[3]
        gate = _sigmoid(nodes[5 * span + i] + bias[5])
        other = right + gate * (left - right)
        gate = _sigmoid(nodes[6 * span + i] + bias[6])
        result[i] = other + gate * (result[i] - other)
    if with_image:
        for i in range(n):
            gate = _sigmoid(nodes[7 * span + i] + bias[7])
            result[i] = result[i] + gate * (nodes[8 * span + i] + bias[8] - result[i])
    largest: Any = np.int32(0)
    for i in range(n):
        largest = max(largest, np.float32(result[i]).view(np.int32) & np.int32(0x7FFFFFFF))
    if least >= 0:
        for i in range(n):
            result[i] = max(result[i], np.float32(0)) + least
    return largest  # type: ignore[no-any-return]


# where lines are short, tiles below each other are computed side by side, like one long line


@compiled
def _lines_2d(
    channels: Array, row: int, first: int, n: int, count: int, mirrored: bool, plain: Array, lines: Array
) -> None:
    """Compute the 8 transformed lines of each channel of `[C, H, W]` for `count` tiles."""
    padded, width = _SPAN_2D + _ROOM, n + 2 * _REACH
    for c in range(channels.shape[0]):
        for k in range(_LINES):
            for tile in range(count):
                at = _place(row + 2 * (_TILE * tile + k - 2), channels.shape[1], mirrored)
                _load(channels[c, at], first, n, mirrored, plain[k * padded + tile * width :])
        to = lines[c * _LINES * padded :]
        _forward(plain, _SPAN_2D + _ROOM, to, _SPAN_2D + _ROOM, _whole(count * width))


@compiled
def _lines_3d(
    channels: Array, slice_: int, row: int, first: int, n: int, count: int, mirrored: bool,
    plain: Array, half: Array, lines: Array,
) -> None:  # fmt: skip
    """Compute the 64 transformed lines of each channel of `[C, D, H, W]` for `count` tiles."""
    padded, width = _SPAN_3D + _ROOM, n + 2 * _REACH
    for c in range(channels.shape[0]):
        for z in range(_LINES):
            plane = channels[c, _place(slice_ + 2 * (z - 2), channels.shape[1], mirrored)]
            for y in range(_LINES):
                for tile in range(count):
                    at = _place(row + 2 * (_TILE * tile + y - 2), channels.shape[2], mirrored)
                    _load(plane[at], first, n, mirrored, plain[y * padded + tile * width :])
            _forward(plain, _SPAN_3D + _ROOM, half[z * _LINES * padded :], _SPAN_3D + _ROOM, _whole(count * width))
        own = lines[c * _LINES * _LINES * padded :]
        for y in range(_LINES):
            step = _LINES * (_SPAN_3D + _ROOM)
            _forward(half[y * padded :], step, own[y * padded :], step, _whole(count * width))


@compiled
def _add_channels(
    lines: Array, span: int, weights: Array, first: int, last: int, pair: int, nodes: Array, n: int
) -> None:
    """Add a group of channels to pairs of nodes from `pair` on, transformed; weights are `[U, P, C, 2, 5]`."""
    many, pairs, padded = weights.shape[0], weights.shape[1], span + _ROOM
    for u in range(many):
        own, to = lines[u * padded :], nodes[(u * _NODES + 2 * pair) * span :]
        for k in range(pairs):
            _filter_two(own, many * padded, weights[u, k], first, last, to[2 * k * span :], span, n)


@compiled
def _root_2d(
    batch: Array, images: Array, of_logits: Array, of_image: Array, bias: Array, least: float, results: Array,
    count: int, tiles: Array,
) -> int:  # fmt: skip
    """Compute the root of `count` tiles at a time, given by image, first row and first column; see `_mix`."""
    classes, channels, mirrored = batch.shape[1], images.shape[1], min(batch.shape[2:]) > _REACH
    padded, step = _SPAN_2D + _ROOM, _NODES * _SPAN_2D
    plain, lines = np.zeros(_LINES * padded, np.float32), np.zeros(_GROUP * _LINES * padded, np.float32)
    nodes, mixed = np.zeros(_LINES * step, np.float32), np.zeros(_TILE * step, np.float32)
    used = 9 if channels else 8
    largest: Any = np.int32(0)
    for at in range(tiles.shape[0]):
        b, row, first = tiles[at]
        n = min(_SPAN_2D - 2 * _REACH, batch.shape[3] - first)
        width = n + 2 * _REACH
        columns = _whole(count * width - 2 * _REACH)
        for low in range(0, classes, _GROUP):
            high = min(low + _GROUP, classes)
            _lines_2d(batch[b, low:high], row, first, n, count, mirrored, plain, lines)
            _add_channels(lines, _SPAN_2D, of_logits, low, high, 0, nodes, columns)
        for low in range(0, channels, _GROUP):
            high = min(low + _GROUP, channels)
            _lines_2d(images[b, low:high], row, first, n, count, mirrored, plain, lines)
            _add_channels(lines, _SPAN_2D, of_image, low, high, 4, nodes, columns)
        for node in range(used):
            _backward(nodes[node * _SPAN_2D :], _NODES * _SPAN_2D, mixed[node * _SPAN_2D :], _NODES * _SPAN_2D, columns)
        for tile in range(count):
            for k in range(_TILE):
                y = row + 2 * (_TILE * tile + k)
                if y < batch.shape[2]:
                    found = mixed[k * step + tile * width :]
                    line = results[b, y, first : first + n]
                    largest = max(largest, _mix(found, _SPAN_2D, bias, channels > 0, least, line))
    return largest  # type: ignore[no-any-return]


@compiled
def _root_3d(
    batch: Array, images: Array, of_logits: Array, of_image: Array, bias: Array, least: float, results: Array,
    count: int, tiles: Array,
) -> int:  # fmt: skip
    """Compute the root of `count` tiles at a time, given by image, first slice, row and column; see `_mix`."""
    classes, channels, mirrored = batch.shape[1], images.shape[1], min(batch.shape[2:]) > _REACH
    many, padded, step = _LINES * _LINES, _SPAN_3D + _ROOM, _NODES * _SPAN_3D
    plain, half = np.zeros(_LINES * padded, np.float32), np.zeros(many * padded, np.float32)
    lines, nodes = np.zeros(_GROUP * many * padded, np.float32), np.zeros(many * step, np.float32)
    partly, mixed = np.zeros(_TILE * _LINES * step, np.float32), np.zeros(_TILE * step, np.float32)
    used = 9 if channels else 8
    largest: Any = np.int32(0)
    for at in range(tiles.shape[0]):
        b, slice_, row, first = tiles[at]
        n = min(_SPAN_3D - 2 * _REACH, batch.shape[4] - first)
        width = n + 2 * _REACH
        columns = _whole(count * width - 2 * _REACH)
        for low in range(0, classes, _GROUP):
            high = min(low + _GROUP, classes)
            _lines_3d(batch[b, low:high], slice_, row, first, n, count, mirrored, plain, half, lines)
            _add_channels(lines, _SPAN_3D, of_logits, low, high, 0, nodes, columns)
        for low in range(0, channels, _GROUP):
            high = min(low + _GROUP, channels)
            _lines_3d(images[b, low:high], slice_, row, first, n, count, mirrored, plain, half, lines)
            _add_channels(lines, _SPAN_3D, of_image, low, high, 4, nodes, columns)
        for y in range(_LINES):
            for node in range(used):
                here, apart = (y * _NODES + node) * _SPAN_3D, _LINES * _NODES * _SPAN_3D
                _backward(nodes[here:], apart, partly[here:], apart, columns)
        for z in range(min(_TILE, (batch.shape[2] - slice_ + 1) // 2)):
            for node in range(used):
                here = node * _SPAN_3D
                part = partly[z * _LINES * step + here :]
                _backward(part, _NODES * _SPAN_3D, mixed[here:], _NODES * _SPAN_3D, columns)
            plane = results[b, slice_ + 2 * z]
            for tile in range(count):
                for k in range(_TILE):
                    y = row + 2 * (_TILE * tile + k)
                    if y < batch.shape[3]:
                        found = mixed[k * step + tile * width :]
                        line = plane[y, first : first + n]
                        largest = max(largest, _mix(found, _SPAN_3D, bias, channels > 0, least, line))
    return largest  # type: ignore[no-any-return]


def tree_root(
    logits: Tensor,
    image: Tensor | None,
    of_logits: tuple[Tensor, Tensor],
    of_image: tuple[Tensor, Tensor] | None,
    offset: float,
    *,
    least: float | None = None,
) -> Tensor:
    """Twin of `segcal.functional.tree.tree_root` for weights in float32, and where all values are finite."""
    if of_logits[0].dtype != torch.float32 or not logits.numel():
        return DECLINED
    x = as_float32(logits)
    size = x.shape[2:]
    y = np.empty((len(x), 0, *size), np.float32) if image is None else as_float32(image)
    weights, bias = _transformed(of_logits[0]), np.zeros(_NODES, np.float32)
    bias[: len(of_logits[1])] = as_numpy(of_logits[1])
    bias[:4] += np.float32(offset)
    for_image = weights[:, :, :0]
    if of_image is not None:
        for_image = _transformed(of_image[0])
        bias[8] = as_numpy(of_image[1])[0] + np.float32(offset)
    result, floor = np.empty((len(x), *size), np.float32), np.float32(-1 if least is None else least)
    kernel, span = (_root_2d, _SPAN_2D) if len(size) == 2 else (_root_3d, _SPAN_3D)
    width = min(size[-1] + 2 * _REACH, span)
    scratch = 4 * len(weights) * width * (_NODES - 1 + min(x.shape[1], _GROUP))
    count = max(1, min(span // width, _CACHE // scratch, -(-size[-2] // (2 * _TILE))))
    fields = (x, y, weights, for_image, bias, floor, result, count)
    parts = np.array_split(_tiles(len(x), size, count, span - 2 * _REACH), torch.get_num_threads())
    run: Callable[..., int] = kernel
    largest = max(run_all([partial(run, *fields, part) for part in parts]))
    return torch.from_numpy(result).unsqueeze(1) if largest < _INFINITE else DECLINED


def _transformed(weight: Tensor) -> Array:
    """Transform weights `[K, C, 5, 5(, 5)]` along all axes except the last: Float32[U, K / 2, C, 2, 5].

    A node of zeros is added where one is missing for a pair: the gate of the image, or a second leaf of it.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # as in PyTorch
        found = _FILTER @ as_numpy(weight).astype(np.float64)  # of the last axis but one
        if found.ndim == 5:
            found = _FILTER @ found.reshape(*found.shape[:3], -1)
        found = found.reshape(*found.shape[:2], -1, 5)
        whole = np.concatenate([found, np.zeros_like(found[: len(found) % 2])])
        pairs = whole.reshape(-1, 2, *whole.shape[1:]).transpose(3, 0, 2, 1, 4)
        return np.ascontiguousarray(pairs, np.float32)


@lru_cache(maxsize=16)
def _tiles(images: int, size: tuple[int, ...], count: int, span: int) -> Array:
    """Return image, first lines and first column of tiles; their lines are 2 apart, so they start at both parities."""
    steps = [2 * _TILE] * (len(size) - 2) + [2 * _TILE * count]
    starts = [
        [start + parity for start in range(0, length, step) for parity in (0, 1) if start + parity < length]
        for length, step in zip(size[:-1], steps, strict=True)
    ]
    return np.array(list(product(range(images), *starts, range(0, size[-1], span))), np.int64)
