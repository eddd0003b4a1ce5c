"""The temperature tree of one image on the CPU: its convolutions and its gates, fused, tile by tile in the cache.

A convolution with dilation 2 is as many plain ones as a place has parities. Across the lines of an image each of these
is computed by Winograd's minimal filtering F(4, 5) (Winograd 1980; Lavin and Gray 2016): four lines of results from
eight lines of input, with 8 products instead of 20; in 2D along y, in 3D along z and y. Along the lines it is computed
directly, so that the vector units read neighbouring pixels. Leaves and gates are mixed while they are in the cache, and
nothing but the result is written to memory.

The price is precision: the result of float32 is off by about 1e-6 (2D) or 1e-5 (3D) of the sum of the absolute products
that it is made of, where plain convolutions are off by 1e-7.
"""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

from segcal.functional.compiling import as_numpy, compiled, inlined, run_all
from segcal.types import Array

_REACH = 4
_TILE, _LINES = 4, 8  # lines of results, and of input, of one tile
_SPAN = 256  # columns of a tile, whose intermediate results stay in the second-level cache
_PADDED = _SPAN + 32
_NODES = 9  # four leaves, four gates, the leaf of the image

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
    """Which place to read for one up to 4 beyond an edge: its mirror image, or the edge itself.

    Tiles reach further than that beyond the last line, for results that nobody needs.
    """
    if not mirrored:
        return min(max(at, 0), length - 1)
    at = min(abs(at), length - 1 + _REACH)
    return 2 * (length - 1) - at if at >= length else at


@compiled
def _whole(n: int) -> int:
    """Columns to compute for `n` that are wanted: whole vectors, since the rest of one takes longer than another."""
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


# offsets within arrays are constants, here and below: only then does the compiler use the vector units


@inlined
def _forward(lines: Array, step: int, found: Array, stride: int, n: int) -> None:
    """Eight lines, `step` apart, to eight, `stride` apart (the matrix B^T)."""
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
    """Eight lines, `step` apart, to four, `stride` apart (the matrix A^T)."""
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
def _filter_four(lines: Array, at: int, step: int, weights: Array, found: Array, to: int, n: int) -> None:
    """Add up the channels, each filtered along its line, for four of the nodes; weights are `[C, 4, 5]`."""
    zero = np.float32(0)
    a, b = found[to : to + n], found[to + _SPAN : to + _SPAN + n]
    c, d = found[to + 2 * _SPAN : to + 2 * _SPAN + n], found[to + 3 * _SPAN : to + 3 * _SPAN + n]
    for i in range(n):
        a[i] = zero
        b[i] = zero
        c[i] = zero
        d[i] = zero
    for channel in range(weights.shape[0]):
        w = weights[channel]
        a0, a1, a2, a3, a4 = w[0, 0], w[0, 1], w[0, 2], w[0, 3], w[0, 4]
        b0, b1, b2, b3, b4 = w[1, 0], w[1, 1], w[1, 2], w[1, 3], w[1, 4]
        c0, c1, c2, c3, c4 = w[2, 0], w[2, 1], w[2, 2], w[2, 3], w[2, 4]
        d0, d1, d2, d3, d4 = w[3, 0], w[3, 1], w[3, 2], w[3, 3], w[3, 4]
        line = lines[at + channel * step : at + channel * step + n + 2 * _REACH]
        for i in range(n):
            p, q, r, s, t = line[i], line[i + 2], line[i + 4], line[i + 6], line[i + 8]
            a[i] = a[i] + a0 * p + a1 * q + a2 * r + a3 * s + a4 * t
            b[i] = b[i] + b0 * p + b1 * q + b2 * r + b3 * s + b4 * t
            c[i] = c[i] + c0 * p + c1 * q + c2 * r + c3 * s + c4 * t
            d[i] = d[i] + d0 * p + d1 * q + d2 * r + d3 * s + d4 * t


@compiled
def _filter_one(lines: Array, at: int, step: int, weights: Array, found: Array, to: int, n: int) -> None:
    """The same for one node; weights are `[C, 5]`."""
    sums = found[to : to + n]
    for i in range(n):
        sums[i] = np.float32(0)
    for channel in range(weights.shape[0]):
        a, b, c, d, e = (
            weights[channel, 0], weights[channel, 1], weights[channel, 2], weights[channel, 3], weights[channel, 4]
        )  # fmt: skip
        line = lines[at + channel * step : at + channel * step + n + 2 * _REACH]
        for i in range(n):
            sums[i] = sums[i] + a * line[i] + b * line[i + 2] + c * line[i + 4] + d * line[i + 6] + e * line[i + 8]


@compiled
def _sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)) in float32, to about 1e-7."""
    x = min(max(-x, np.float32(-87)), np.float32(87))  # type: ignore[assignment]
    shifted = x * np.float32(1.44269504) + np.float32(
        12582912
    )  # 1.5 * 2**23: rounds to an integer held in the low bits
    k = shifted - np.float32(12582912)
    r = (x - k * np.float32(0.693359375)) + k * np.float32(2.12194440e-4)
    p = np.float32(1.9875691e-4)
    p = p * r + np.float32(1.3981999e-3)
    p = p * r + np.float32(8.3334519e-3)
    p = p * r + np.float32(4.1665796e-2)
    p = p * r + np.float32(1.6666666e-1)
    p = p * r + np.float32(0.5)
    p = p * r * r + r + np.float32(1)
    bits = np.float32(p).view(np.int32) + (np.float32(shifted).view(np.int32) << np.int32(23))
    return np.float32(1) / (np.float32(1) + np.int32(bits).view(np.float32))  # type: ignore[return-value]


@compiled
def _mix(nodes: Array, bias: Array, with_image: bool, result: Array) -> None:
    """The value at the root of each pixel (Eq. B.2), without the ones; nodes lie `_SPAN` apart."""
    n = result.shape[0]
    for i in range(n):
        left, right = nodes[i] + bias[0], nodes[_SPAN + i] + bias[1]
        gate = _sigmoid(nodes[4 * _SPAN + i] + bias[4])
        result[i] = right + gate * (left - right)
    for i in range(n):
        left, right = nodes[2 * _SPAN + i] + bias[2], nodes[3 * _SPAN + i] + bias[3]
        gate = _sigmoid(nodes[5 * _SPAN + i] + bias[5])
        other = right + gate * (left - right)
        gate = _sigmoid(nodes[6 * _SPAN + i] + bias[6])
        result[i] = other + gate * (result[i] - other)
    if with_image:
        for i in range(n):
            gate = _sigmoid(nodes[7 * _SPAN + i] + bias[7])
            result[i] = result[i] + gate * (nodes[8 * _SPAN + i] + bias[8] - result[i])


@compiled
def _lines_2d(values: Array, row: int, first: int, n: int, mirrored: bool, plain: Array, lines: Array) -> None:
    """Of each channel of `[C, H, W]` the 8 transformed lines from which a tile is computed."""
    for c in range(values.shape[0]):
        for k in range(_LINES):
            line = values[c, _place(row + 2 * (k - 2), values.shape[1], mirrored)]
            _load(line, first, n, mirrored, plain[k * _PADDED :])
        _forward(plain, _PADDED, lines[c * _LINES * _PADDED :], _PADDED, _whole(n + 2 * _REACH))


@compiled
def _lines_3d(
    values: Array, slice_: int, row: int, first: int, n: int, mirrored: bool, plain: Array, half: Array, lines: Array
) -> None:
    """Of each channel of `[C, D, H, W]` the 64 transformed lines from which a tile is computed."""
    step = _LINES * _PADDED
    for c in range(values.shape[0]):
        for z in range(_LINES):
            plane = values[c, _place(slice_ + 2 * (z - 2), values.shape[1], mirrored)]
            for y in range(_LINES):
                _load(
                    plane[_place(row + 2 * (y - 2), values.shape[2], mirrored)],
                    first,
                    n,
                    mirrored,
                    plain[y * _PADDED :],
                )
            _forward(plain, _PADDED, half[z * step :], _PADDED, _whole(n + 2 * _REACH))
        for y in range(_LINES):
            to = lines[c * _LINES * step + y * _PADDED :]
            _forward(half[y * _PADDED :], _LINES * _PADDED, to, _LINES * _PADDED, _whole(n + 2 * _REACH))


@compiled
def _nodes(lines: Array, of_logits: Array, of_image: Array, nodes: Array, n: int) -> None:
    """Leaves and gates in the transformed domain; weights are `[U, 2, L, 4, 5]` and `[U, C, 5]`."""
    many, classes, channels = of_logits.shape[0], of_logits.shape[2], of_image.shape[1]
    of_channels = lines[classes * many * _PADDED :]
    for u in range(many):
        to = u * _NODES * _SPAN
        _filter_four(lines, u * _PADDED, many * _PADDED, of_logits[u, 0], nodes, to, n)
        _filter_four(lines, u * _PADDED, many * _PADDED, of_logits[u, 1], nodes, to + 4 * _SPAN, n)
        if channels:
            _filter_one(of_channels, u * _PADDED, many * _PADDED, of_image[u], nodes, to + 8 * _SPAN, n)


@compiled
def _root_2d(
    logits: Array, image: Array, of_logits: Array, of_image: Array, bias: Array, result: Array, tiles: Array
) -> None:
    """Tiles, each a first row and column, of the value at the root."""
    classes, channels, mirrored = logits.shape[0], image.shape[0], min(logits.shape[1:]) > _REACH
    plain = np.zeros(_LINES * _PADDED, np.float32)
    lines = np.zeros((classes + channels) * _LINES * _PADDED, np.float32)
    nodes = np.zeros(_LINES * _NODES * _SPAN, np.float32)
    mixed = np.zeros(_TILE * _NODES * _SPAN, np.float32)
    for tile in range(tiles.shape[0]):
        row, first = tiles[tile, 0], tiles[tile, 1]
        n = min(_SPAN, logits.shape[2] - first)
        _lines_2d(logits, row, first, n, mirrored, plain, lines)
        _lines_2d(image, row, first, n, mirrored, plain, lines[classes * _LINES * _PADDED :])
        _nodes(lines, of_logits, of_image, nodes, _whole(n))
        for node in range(_NODES):
            _backward(nodes[node * _SPAN :], _NODES * _SPAN, mixed[node * _SPAN :], _NODES * _SPAN, _whole(n))
        for k in range(min(_TILE, (logits.shape[1] - row + 1) // 2)):
            _mix(mixed[k * _NODES * _SPAN :], bias, channels > 0, result[row + 2 * k, first : first + n])


@compiled
def _root_3d(
    logits: Array, image: Array, of_logits: Array, of_image: Array, bias: Array, result: Array, tiles: Array
) -> None:
    """Tiles, each a first slice, row and column, of the value at the root."""
    classes, channels, mirrored = logits.shape[0], image.shape[0], min(logits.shape[1:]) > _REACH
    many, step = _LINES * _LINES, _NODES * _SPAN
    plain, half = np.zeros(_LINES * _PADDED, np.float32), np.zeros(many * _PADDED, np.float32)
    lines = np.zeros((classes + channels) * many * _PADDED, np.float32)
    nodes = np.zeros(many * step, np.float32)
    partly = np.zeros(_TILE * _LINES * step, np.float32)
    mixed = np.zeros(_TILE * step, np.float32)
    for tile in range(tiles.shape[0]):
        slice_, row, first = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2]
        n = min(_SPAN, logits.shape[3] - first)
        _lines_3d(logits, slice_, row, first, n, mirrored, plain, half, lines)
        _lines_3d(image, slice_, row, first, n, mirrored, plain, half, lines[classes * many * _PADDED :])
        _nodes(lines, of_logits, of_image, nodes, _whole(n))
        for y in range(_LINES):
            for node in range(_NODES):
                at = (y * _NODES + node) * _SPAN
                _backward(nodes[at:], _LINES * _NODES * _SPAN, partly[at:], _LINES * _NODES * _SPAN, _whole(n))
        for z in range(min(_TILE, (logits.shape[1] - slice_ + 1) // 2)):
            for node in range(_NODES):
                at = z * _LINES * step + node * _SPAN
                _backward(partly[at:], _NODES * _SPAN, mixed[node * _SPAN :], _NODES * _SPAN, _whole(n))
            plane = result[slice_ + 2 * z]
            for y in range(min(_TILE, (logits.shape[2] - row + 1) // 2)):
                _mix(mixed[y * step :], bias, channels > 0, plane[row + 2 * y, first : first + n])


def tree_root(
    logits: Tensor,
    image: Tensor | None,
    of_logits: tuple[Tensor, Tensor],
    of_image: tuple[Tensor, Tensor] | None,
    offset: float,
) -> Tensor:
    """The value at the root of the tree for one image `[L, *S]`: Float32[*S].

    Args:
        logits: `[L, *S]` in float32.
        image: `[C, *S]` in float32, if the tree has a leaf for it.
        of_logits: Weight `[7 or 8, L, 5, 5(, 5)]` and bias of leaves and gates.
        of_image: Weight `[1, C, 5, 5(, 5)]` and bias of the leaf of the image.
        offset: Added to every leaf.
    """
    x = as_numpy(logits)
    y = np.empty((0, *x.shape[1:]), np.float32) if image is None else as_numpy(image)
    weights, bias = _transformed(of_logits[0]), np.zeros(_NODES, np.float32)
    weights = np.concatenate(
        [weights, np.zeros((len(weights), 8 - weights.shape[1], *weights.shape[2:]), np.float32)], 1
    )
    grouped = weights.reshape(len(weights), 2, 4, *weights.shape[2:]).transpose(0, 1, 3, 2, 4)
    bias[: len(of_logits[1])] = as_numpy(of_logits[1])
    bias[:4] += np.float32(offset)
    for_image = np.empty((len(weights), 0, 5), np.float32)
    if of_image is not None:
        for_image = _transformed(of_image[0])[:, 0]
        bias[8] = as_numpy(of_image[1])[0] + np.float32(offset)
    result = np.empty(x.shape[1:], np.float32)
    kernel = _root_2d if x.ndim == 3 else _root_3d
    fields = (x, y, np.ascontiguousarray(grouped), np.ascontiguousarray(for_image), bias, result)
    parts = np.array_split(_tiles(x.shape[1:]), torch.get_num_threads())
    run_all([partial(kernel, *fields, part) for part in parts])
    return torch.from_numpy(result)


def _transformed(weight: Tensor) -> Array:
    """Weights `[K, C, 5, 5(, 5)]` in the transformed domain of all axes but the last: Float32[U, K, C, 5]."""
    found = as_numpy(weight).astype(np.float64)
    for _ in range(found.ndim - 3):  # the last axis but one goes, and its transform comes first: z y -> y' z -> z' y'
        found = np.tensordot(_FILTER, found, axes=(1, found.ndim - 2))
    return found.reshape(-1, *found.shape[-3:]).astype(np.float32)


def _tiles(shape: tuple[int, ...]) -> Array:
    """The first lines and column of every tile: lines of one tile are 2 apart, so tiles start at both parities."""
    starts = [
        [start + parity for start in range(0, length, 2 * _TILE) for parity in (0, 1) if start + parity < length]
        for length in shape[:-1]
    ]
    return np.array(list(product(*starts, range(0, shape[-1], _SPAN))), np.int64)
