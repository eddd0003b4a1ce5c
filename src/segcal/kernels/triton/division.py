"""Logits divided by temperatures on CUDA, with every label kept: one read of the logits and one write of the result."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.kernels.dispatch import DECLINED
from segcal.kernels.triton.launching import PRECISIONS, launch, pieces
from segcal.kernels.triton.nonfinite import flag, flag_nonfinite, found_nonfinite
from segcal.kernels.triton.softmax import (
    HELD,
    HELD_WARPS,
    PIXELS,
    WARPS,
    flat,
    guarded,
    largest_of,
    possible,
    possible_classes,
    read,
    read_classes,
    summarised,
    tile_shape,
)


@triton.jit
def _scaled(
    z_ptr, t_ptr, out_ptr, flag_ptr, N, zb, zl, zn, tb, tn, limit,
    PROBABILITIES: tl.constexpr, L: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Softmax of the quotients, or the quotients, of all classes at once."""
    image = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    heat = tl.load(t_ptr + image * tb + n.to(tl.int64) * tn, mask=n < N, other=1.0).to(tl.float32)
    z = read_classes(z_ptr + image * zb + n.to(tl.int64) * zn, n < N, zl, L)
    top = largest_of(z, L)
    z = possible_classes(z, top, z_ptr.dtype.element_ty, L)
    out_ptr += image * L * N + n
    step = image * 0 + N  # in 64 bits
    if PROBABILITIES:
        cold, total, powers = 1.0 / heat, tl.zeros([BN], tl.float32), ()
        for c in tl.static_range(L):
            powers += (tl.exp((z[c] - top) * cold),)
            total += powers[c]
        share = 1.0 / total
        for c in tl.static_range(L):
            found = guarded((powers[c] * share).to(dtype), share.to(dtype), z[c], top)  # the winner's power is 1
            tl.store(out_ptr + c * step, found, mask=n < N)
        flag_nonfinite(flag_ptr, ((total < float("inf")) == 0) & (n < N))  # also where it is NaN
    else:
        zeros = tl.zeros([BN], tl.float32)
        for c in tl.static_range(L):
            zeros += z[c] * 0.0  # NaN if a logit is NaN or infinite
            found, largest = _quotients(z[c], top, heat, heat, limit, dtype)
            tl.store(out_ptr + c * step, guarded(found, largest, z[c], top), mask=n < N)
        flag_nonfinite(flag_ptr, ((zeros != 0.0) | (top == float("-inf"))) & (n < N))


@triton.jit
def _scaled_in_chunks(
    z_ptr, t_ptr, out_ptr, flag_ptr, L, N, zb, zl, zn, tb, tn, limit,
    PROBABILITIES: tl.constexpr, BL: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The same for more classes than a tile holds."""
    image = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    heat = tl.load(t_ptr + image * tb + n.to(tl.int64) * tn, mask=n < N, other=1.0).to(tl.float32)
    cold = 1.0 / heat
    top, total = summarised(z_ptr + image * zb, n, cold, L, N, zl, zn, BL, BN)
    flag_nonfinite(flag_ptr, ((total < float("inf")) == 0) & (n < N))
    share = 1.0 / total
    for start in range(0, L, BL):
        c = start + tl.arange(0, BL)
        z = possible(read(z_ptr + image * zb, c, n, L, N, zl, zn), top, c, L, z_ptr.dtype.element_ty)
        if PROBABILITIES:
            found = (tl.exp((z - top[None, :]) * cold[None, :]) * share[None, :]).to(out_ptr.dtype.element_ty)
            largest = share.to(out_ptr.dtype.element_ty)
        else:
            found, largest = _quotients(
                z, top, tl.broadcast_to(heat[None, :], z.shape), heat, limit, out_ptr.dtype.element_ty
            )
        found = guarded(found, largest[None, :], z, top[None, :])
        _write(out_ptr + image * L * N, c, n, L, N, found)


@triton.jit
def _quotients(z, top, heats, heat, limit, dtype: tl.constexpr):
    """Return quotients and the winner's, finite in the precision of the result; `heats` has the shape of `z`."""
    # correctly rounded, so that a smaller logit never has a larger quotient
    found = tl.clamp(tl.div_rn(z, heats), -limit, limit)
    largest = tl.clamp(tl.div_rn(top, heat), -limit, limit)
    return found.to(dtype), largest.to(dtype)


@triton.jit
def _write(out_ptr, c, n, L, N, found):
    at = c.to(tl.int64)[:, None] * N + n.to(tl.int64)[None, :]
    tl.store(out_ptr + at, found, mask=(c < L)[:, None] & (n < N)[None, :])


def scaled_probabilities(logits: Tensor, temperature: Tensor) -> Tensor:
    """Twin of `segcal.functional.division.scaled_probabilities`, computed in float32."""
    return _run(logits, temperature, probabilities=True)


def scaled_logits(logits: Tensor, temperature: Tensor) -> Tensor:
    """Twin of `segcal.functional.division.scaled_logits`, computed in float32."""
    return _run(logits, temperature, probabilities=False)


def _run(logits: Tensor, temperature: Tensor, *, probabilities: bool) -> Tensor:
    if logits.dtype not in PRECISIONS or temperature.dtype not in PRECISIONS or not logits.numel():
        return DECLINED
    (z, of_z), (heat, of_heat) = flat(logits), flat(temperature)
    images, classes, *size = logits.shape
    pixels = math.prod(size)
    found = torch.empty_like(logits, memory_format=torch.contiguous_format)
    strides = (*of_z, of_heat[0], of_heat[2], _LIMITS[logits.dtype])
    if classes <= HELD:
        launch(
            _scaled, (pieces(pixels, PIXELS), images), z, heat, found, flag(), pixels, *strides,
            PROBABILITIES=probabilities, L=classes, BN=PIXELS, num_warps=HELD_WARPS,
        )  # fmt: skip
    else:
        rows, columns = tile_shape(classes)
        launch(
            _scaled_in_chunks, (pieces(pixels, columns), images), z, heat, found, flag(), classes, pixels, *strides,
            PROBABILITIES=probabilities, BL=rows, BN=columns, num_warps=WARPS,
        )  # fmt: skip
    return DECLINED if found_nonfinite(logits) else found  # the plain form refuses them


_LIMITS = {dtype: torch.finfo(dtype).max * (1 - torch.finfo(dtype).eps) for dtype in PRECISIONS}
