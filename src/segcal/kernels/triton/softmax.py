"""Shared parts of the kernels for CUDA: reading the classes of some pixels, and the guard of the labels.

A program holds the scores of `BN` pixels, and a thread all classes of its own pixels, so that threads exchange nothing.
Up to `HELD` classes fit its registers at once, as a tuple of vectors `[BN]`, and are read once. More are read twice, in
chunks `[BL, BN]`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from segcal.kernels.constants import SMALLEST_LOG_PROBABILITY

HELD = 64
"""Classes up to which a program holds all of them."""
PIXELS, HELD_WARPS = 128, 4
"""Pixels and warps of a program that holds all classes."""
TILE = 64
"""Classes up to which a tile holds all of them."""
CHUNK = 32
"""Classes read at a time where there are more."""
WARPS = 1
"""Warps of a program with such a tile: sums over classes stay within a warp and need no shared memory."""
_ELEMENTS = 2048
_FARTHEST = tl.constexpr(-SMALLEST_LOG_PROBABILITY)


def tile_shape(classes: int) -> tuple[int, int]:
    """Return classes and pixels of a tile."""
    rows = 1 << (classes - 1).bit_length() if classes <= TILE else CHUNK
    return rows, max(32, min(512, _ELEMENTS // rows))


def flat(values: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
    """Return `[B, C, *S]`, or a copy if need be, and its strides as `[B, C, N]`; without the cost of a view."""
    strides, shape = values.stride(), values.shape
    for k in range(2, len(shape) - 1):
        if strides[k] != strides[k + 1] * shape[k + 1]:
            values = laid_flat(values)
            strides = values.stride()
            break
    return values, (strides[0], strides[1], strides[-1] if len(shape) > 2 else 1)


def laid_flat(values: Tensor) -> Tensor:
    """Return `[B, C, *S]` as `[B, C, N]`, without a copy where the strides allow."""
    return values.flatten(2) if values.ndim > 2 else values.unsqueeze(2)


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
def read_classes(z_ptr, inside, zl, L: tl.constexpr):
    """Return the logits of all classes of some pixels in float32; 0 outside."""
    found = ()
    for _ in tl.static_range(L):
        found += (tl.load(z_ptr, mask=inside, other=0.0).to(tl.float32),)
        z_ptr += zl  # not a product, which may need more than 32 bits
    return found


@triton.jit
def largest_of(z, L: tl.constexpr):
    """Return the largest logit of each pixel."""
    top = z[0]
    for c in tl.static_range(1, L):
        top = tl.maximum(top, z[c])
    return top


@triton.jit
def possible_classes(z, top, dtype: tl.constexpr, L: tl.constexpr):
    """Return logits with a finite number instead of -infinity."""
    lowest, found = impossible_logit(top, dtype), ()
    for c in tl.static_range(L):
        found += (tl.where(z[c] == float("-inf"), lowest, z[c]),)
    return found


@triton.jit
def impossible_logit(top, dtype: tl.constexpr):
    """Return the logit of an impossible class: see `segcal.functional.probability.possible_logits`."""
    if dtype == tl.float16:
        eps, least = 0.0009765625, -65504.0
    elif dtype == tl.bfloat16:
        eps, least = 0.0078125, -3.3895313892515355e38
    else:
        eps, least = 1.1920928955078125e-07, -3.4028234663852886e38
    below = tl.maximum(4.0 * eps * tl.abs(top), _FARTHEST)
    return tl.maximum(top - below, least).to(dtype).to(tl.float32)


@triton.jit
def possible(z, top, c, L, dtype: tl.constexpr):
    """Return logits with a finite number instead of -infinity, except for classes from `L` on."""
    impossible = (z == float("-inf")) & (c < L)[:, None]
    return tl.where(impossible, impossible_logit(top, dtype)[None, :], z)


@triton.jit
def summarised(z_ptr, n, cold, L, N, zl, zn, BC: tl.constexpr, BN: tl.constexpr):
    """Return the largest logit and the sum of `exp(cold (z - largest))` of each pixel, in chunks of classes.

    The sum is NaN or infinite where a logit is NaN or +infinity, or all are -infinity.
    """
    top = tl.full([BN], float("-inf"), tl.float32)
    total, impossible = tl.zeros([BN], tl.float32), tl.zeros([BN], tl.float32)
    for start in range(0, L, BC):
        c = start + tl.arange(0, BC)
        z = read(z_ptr, c, n, L, N, zl, zn)
        higher = tl.maximum(top, tl.max(z, axis=0))
        # the first chunks have nothing to rescale, and -infinity minus -infinity would be NaN
        old = tl.where(top == higher, 1.0, tl.exp((top - higher) * cold))
        origin = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * old + tl.sum(tl.exp((z - origin[None, :]) * cold[None, :]), axis=0)
        impossible += tl.sum(((z == float("-inf")) & (c < L)[:, None]).to(tl.float32), axis=0)
        top = higher
    lowest = impossible_logit(top, z_ptr.dtype.element_ty)
    rest = tl.where(impossible > 0, impossible * tl.exp((lowest - top) * cold), 0.0)
    return top, total + rest


@triton.jit
def summed_up(z_ptr, inside, cold, L, zl, BN: tl.constexpr):
    """Return the same as `summarised`, class by class, which threads go through without exchanging anything."""
    top = tl.full([BN], float("-inf"), tl.float32)
    at = z_ptr
    for _ in range(L):
        top = tl.maximum(top, tl.load(at, mask=inside, other=0.0).to(tl.float32))
        at += zl
    lowest, total = impossible_logit(top, z_ptr.dtype.scalar.element_ty), tl.zeros([BN], tl.float32)
    at = z_ptr
    for _ in range(L):
        z = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        at += zl
        total += tl.exp((tl.where(z == float("-inf"), lowest, z) - top) * cold)
    return top, total
