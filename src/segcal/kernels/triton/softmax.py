"""What the kernels for CUDA share: tiles of pixels by classes, and the guard of the labels.

A program holds the scores of `BN` pixels. Up to `TILE` classes fit its registers at once, as one tile `[BL, BN]` with
`BL` the next power of 2; more classes are read in chunks, twice.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64
"""Classes up to which a tile holds all of them."""
CHUNK = 32
"""Classes read at a time where there are more."""
WARPS = 1
"""Of a program with such a tile: sums over classes stay within a warp and need no shared memory."""
_ELEMENTS = 2048
PRECISIONS = (torch.float16, torch.bfloat16, torch.float32)


def tile_shape(classes: int) -> tuple[int, int]:
    """Return classes and pixels of a tile."""
    rows = triton.next_power_of_2(classes) if classes <= TILE else CHUNK
    return rows, max(32, min(512, _ELEMENTS // rows))


def laid_flat(values: Tensor) -> Tensor:
    """Return `[B, C, *S]` as `[B, C, N]`, without a copy where the strides allow."""
    return values.flatten(2) if values.ndim > 2 else values.unsqueeze(2)


def on_device(tensor: Tensor) -> Any:
    """Make the device of a tensor the current one, which is where Triton launches."""
    return torch.cuda.device_of(tensor)


@triton.jit
def next_below(values):
    """Return the largest number below each finite value, in its own precision."""
    if values.dtype.primitive_bitwidth == 16:
        bits = (values + 0.0).to(values.dtype).to(tl.int16, bitcast=True)
        lower = tl.where(bits > 0, bits - 1, bits + 1)
        lower = tl.where(bits == 0, -32767, lower).to(tl.int16)
    else:
        bits = (values + 0.0).to(tl.int32, bitcast=True)
        lower = tl.where(bits > 0, bits - 1, bits + 1)
        lower = tl.where(bits == 0, -2147483647, lower).to(tl.int32)
    return lower.to(values.dtype, bitcast=True)


@triton.jit
def guarded(found, largest, z, top):
    """Move scores down by one unit in the last place that rounding made equal to the winner's."""
    rival = (found >= largest) & (z < top)
    return tl.where(rival, next_below(found), found)


@triton.jit
def read(z_ptr, c, n, L, N, zl, zn):
    """Return the logits of classes `c` and pixels `n` in float32; -infinity outside."""
    inside = (c < L)[:, None] & (n < N)[None, :]
    at = c.to(tl.int64)[:, None] * zl + n.to(tl.int64)[None, :] * zn
    return tl.load(z_ptr + at, mask=inside, other=float("-inf")).to(tl.float32)


@triton.jit
def summarised(z_ptr, n, cold, L, N, zl, zn, BC: tl.constexpr, BN: tl.constexpr):
    """Return the largest logit and the sum of `exp(cold (z - largest))` of each pixel, in chunks of classes."""
    top = tl.full([BN], float("-inf"), tl.float32)
    total = tl.zeros([BN], tl.float32)
    for start in range(0, L, BC):
        z = read(z_ptr, start + tl.arange(0, BC), n, L, N, zl, zn)
        higher = tl.maximum(top, tl.max(z, axis=0))
        # the first chunk has nothing to rescale, and -infinity minus -infinity would be NaN
        old = tl.where(top == higher, 1.0, tl.exp((top - higher) * cold))
        total = total * old + tl.sum(tl.exp((z - higher[None, :]) * cold[None, :]), axis=0)
        top = higher
    return top, total
