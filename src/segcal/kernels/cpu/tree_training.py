"""The gradient of the filters of a dilated convolution, compiled for the CPU.

It is the correlation of the gradient of each node with the padded values. In lines laid out one after the other every
tap is a shift, so that the lines of a block, with zeros between them, are one long sum: twenty of them at a time, of
four nodes and the five taps along a line, which is what the registers hold.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.cpu.compiling import as_numpy, compiled, run_all, summing
from segcal.kernels.dispatch import DECLINED
from segcal.types import Array

_TAPS, _DILATION = 5, 2
_REACH = _DILATION * (_TAPS - 1)
_BLOCK = 640  # values of a line, or of several, that stay in the first-level cache with those of all nodes
_CHUNKS = 16  # parts that are summed by themselves, so that no bit depends on the number of threads


@summing
def _add_four(values: Array, slopes: Array, pitch: int, first: int, n: int, total: Array) -> None:
    """Add the products of four nodes from `first` on, whose gradients lie `pitch` apart, to `total[first:, tap]`."""
    p, q, r, s, t = values, values[2:], values[4:], values[6:], values[8:]
    a, b = slopes[first * pitch :], slopes[(first + 1) * pitch :]
    c, d = slopes[(first + 2) * pitch :], slopes[(first + 3) * pitch :]
    zero = np.float32(0)
    a0, a1, a2, a3, a4 = zero, zero, zero, zero, zero
    b0, b1, b2, b3, b4 = zero, zero, zero, zero, zero
    c0, c1, c2, c3, c4 = zero, zero, zero, zero, zero
    d0, d1, d2, d3, d4 = zero, zero, zero, zero, zero
    for i in range(n):
        v, w, x, y, z = p[i], q[i], r[i], s[i], t[i]
        e, f, g, h = a[i], b[i], c[i], d[i]
        a0, a1, a2, a3, a4 = a0 + e * v, a1 + e * w, a2 + e * x, a3 + e * y, a4 + e * z
        b0, b1, b2, b3, b4 = b0 + f * v, b1 + f * w, b2 + f * x, b3 + f * y, b4 + f * z
        c0, c1, c2, c3, c4 = c0 + g * v, c1 + g * w, c2 + g * x, c3 + g * y, c4 + g * z
        d0, d1, d2, d3, d4 = d0 + h * v, d1 + h * w, d2 + h * x, d3 + h * y, d4 + h * z
    for tap, found in enumerate(((a0, b0, c0, d0), (a1, b1, c1, d1), (a2, b2, c2, d2), (a3, b3, c3, d3))):
        for k in range(4):
            total[first + k, tap] += found[k]
    for k, found_last in enumerate((a4, b4, c4, d4)):
        total[first + k, 4] += found_last


@compiled
def _load(gradient: Array, first: int, rows: int, pitch: int, size: int, slopes: Array) -> None:
    """Copy lines of every node `[K, H, W]`, with zeros up to `pitch` behind each; nodes lie `size` apart."""
    width = gradient.shape[2]
    for k in range(gradient.shape[0]):
        for row in range(rows):
            line, out = gradient[k, first + row], slopes[k * size + row * pitch : k * size + (row + 1) * pitch]
            for i in range(width):
                out[i] = line[i]
            out[width:] = 0


@compiled
def _correlate(padded: Array, gradient: Array, rows: int, total: Array, start: int, stop: int) -> None:
    """Add the products of blocks `start` to `stop` of lines of `[B, C, Z, Y, X]` and `[B, K, D, H, W]`."""
    depth, height, width = gradient.shape[2:]
    channels, across, nodes, pitch = padded.shape[1], total.shape[1], total.shape[3], padded.shape[4]
    size, each = rows * pitch, (height + rows - 1) // rows
    slopes = np.zeros(nodes * size, np.float32)  # of which the nodes that make the last four whole stay 0
    for block in range(start, stop):
        image, rest = block // (depth * each), block % (depth * each)
        z, y = rest // each, rest % each * rows
        many = min(rows, height - y)
        _load(gradient[image, :, z], y, many, pitch, size, slopes)
        n = (many - 1) * pitch + width
        for c in range(channels):
            for a in range(across):
                plane = padded[image, c, z + _DILATION * a].ravel()
                for b in range(_TAPS):
                    values, own = plane[(y + _DILATION * b) * pitch :], total[c, a, b]
                    for k in range(0, nodes, 4):
                        _add_four(values, slopes, size, k, n, own)


def weight_gradient(padded: Tensor, gradient: Tensor) -> Tensor:
    """Twin of `segcal.functional.tree_training.weight_gradient`, in float32."""
    if padded.dtype != torch.float32 or gradient.dtype != torch.float32 or not gradient.numel():
        return DECLINED
    return torch.from_numpy(_filter_gradient(as_numpy(padded), as_numpy(gradient)))


def _filter_gradient(padded: Array, gradient: Array) -> Array:
    """Return the gradient `[K, C, *W]` of filters from padded values `[B, C, *P]` and the gradient `[B, K, *S]`."""
    dims = padded.ndim - 2
    if dims == 2:
        padded, gradient = padded[:, :, np.newaxis], gradient[:, :, np.newaxis]
    rows = min(max(1, _BLOCK // padded.shape[4]), gradient.shape[3])
    blocks = gradient.shape[0] * gradient.shape[2] * -(-gradient.shape[3] // rows)
    nodes = gradient.shape[1]
    shape = (padded.shape[1], _TAPS if dims == 3 else 1, _TAPS, -(-nodes // 4) * 4, _TAPS)
    totals = np.zeros((_CHUNKS, *shape))
    edges = [blocks * k // _CHUNKS for k in range(_CHUNKS + 1)]
    run_all([partial(_correlate, padded, gradient, rows, totals[k], edges[k], edges[k + 1]) for k in range(_CHUNKS)])
    found: Array = totals.sum(axis=0).transpose(3, 0, 1, 2, 4)[:nodes].astype(np.float32)
    return found.reshape(*found.shape[:2], *(_TAPS,) * dims)
