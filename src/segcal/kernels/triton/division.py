"""Logits divided by temperatures on CUDA, with every label kept: one read of the logits and one write of the result."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.kernels.dispatch import DECLINED, has_values
from segcal.kernels.triton.softmax import (
    PRECISIONS,
    TILE,
    WARPS,
    guarded,
    laid_flat,
    on_device,
    read,
    summarised,
    tile_shape,
)


@triton.jit
def _scaled(
    z_ptr, t_ptr, out_ptr, odd_ptr, L, N, zb, zl, zn, tb, tn, limit,
    PROBABILITIES: tl.constexpr, BL: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Softmax of the quotients, or the quotients, of all classes at once."""
    image = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    c = tl.arange(0, BL)
    heat = tl.load(t_ptr + image * tb + n.to(tl.int64) * tn, mask=n < N, other=1.0).to(tl.float32)
    z = read(z_ptr + image * zb, c, n, L, N, zl, zn)
    _note_odd(odd_ptr, z, c, n, L, N)
    top = tl.max(z, axis=0)
    if PROBABILITIES:
        powers = tl.exp((z - top[None, :]) * (1.0 / heat)[None, :])
        share = 1.0 / tl.sum(powers, axis=0)
        found = (powers * share[None, :]).to(out_ptr.dtype.element_ty)
        largest = share.to(out_ptr.dtype.element_ty)  # of the winner, whose power is 1
    else:
        found, largest = _quotients(z, top, heat, limit, out_ptr.dtype.element_ty)
    found = guarded(found, largest[None, :], z, top[None, :])
    _write(out_ptr + image * L * N, c, n, L, N, found)


@triton.jit
def _scaled_in_chunks(
    z_ptr, t_ptr, out_ptr, odd_ptr, L, N, zb, zl, zn, tb, tn, limit,
    PROBABILITIES: tl.constexpr, BL: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The same for more classes than a tile holds."""
    image = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    heat = tl.load(t_ptr + image * tb + n.to(tl.int64) * tn, mask=n < N, other=1.0).to(tl.float32)
    cold = 1.0 / heat
    top, total = summarised(z_ptr + image * zb, n, cold, L, N, zl, zn, BL, BN)
    share = 1.0 / total
    for start in range(0, L, BL):
        c = start + tl.arange(0, BL)
        z = read(z_ptr + image * zb, c, n, L, N, zl, zn)
        _note_odd(odd_ptr, z, c, n, L, N)
        if PROBABILITIES:
            found = (tl.exp((z - top[None, :]) * cold[None, :]) * share[None, :]).to(out_ptr.dtype.element_ty)
            largest = share.to(out_ptr.dtype.element_ty)
        else:
            found, largest = _quotients(z, top, heat, limit, out_ptr.dtype.element_ty)
        found = guarded(found, largest[None, :], z, top[None, :])
        _write(out_ptr + image * L * N, c, n, L, N, found)


@triton.jit
def _quotients(z, top, heat, limit, dtype: tl.constexpr):
    """Return quotients and the winner's, finite in the precision of the result."""
    # correctly rounded, so that a smaller logit never has a larger quotient
    found = tl.clamp(tl.div_rn(z, tl.broadcast_to(heat[None, :], z.shape)), -limit, limit)
    largest = tl.clamp(tl.div_rn(top, heat), -limit, limit)
    return found.to(dtype), largest.to(dtype)


@triton.jit
def _note_odd(odd_ptr, z, c, n, L, N):
    """Set a flag if a logit of the tile is NaN or infinite; lanes outside of the image hold -infinity."""
    finite = tl.abs(z) < float("inf")
    odd = (c < L)[:, None] & (n < N)[None, :] & (finite == 0)
    if tl.sum(tl.sum(odd.to(tl.int32), axis=1), axis=0) > 0:  # rare, so that the programs do not wait for each other
        tl.atomic_max(odd_ptr, 1)


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
    z, heat = laid_flat(logits), laid_flat(temperature)
    images, classes, pixels = z.shape
    rows, columns = tile_shape(classes)
    kernel = _scaled if classes <= TILE else _scaled_in_chunks
    limits = torch.finfo(logits.dtype)
    found = torch.empty(z.shape, dtype=logits.dtype, device=logits.device)
    odd = torch.zeros(1, dtype=torch.int32, device=logits.device)
    with on_device(logits):
        kernel[(triton.cdiv(pixels, columns), images)](
            z, heat, found, odd, classes, pixels, *z.stride(), heat.stride(0), heat.stride(2),
            limits.max * (1 - limits.eps), PROBABILITIES=probabilities, BL=rows, BN=columns, num_warps=WARPS,
        )  # fmt: skip
    if has_values(logits) and int(odd):  # waits for the device, unless a graph is captured
        return DECLINED  # the plain form refuses them
    return found.view(logits.shape)


@triton.jit
def _confidence(z_ptr, t_ptr, confidence_ptr, label_ptr, L, N, zb, zl, zn, tb, tn, BL: tl.constexpr, BN: tl.constexpr):
    image = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    heat = tl.load(t_ptr + image * tb + n.to(tl.int64) * tn, mask=n < N, other=1.0).to(tl.float32)
    cold = 1.0 / heat
    top = tl.full([BN], float("-inf"), tl.float32)
    total, label = tl.zeros([BN], tl.float32), tl.zeros([BN], tl.int32)
    for start in range(0, L, BL):
        z = read(z_ptr + image * zb, start + tl.arange(0, BL), n, L, N, zl, zn)
        here, place = tl.max(z, axis=0, return_indices=True, return_indices_tie_break_left=True)
        higher = tl.maximum(top, here)
        old = tl.where(top == higher, 1.0, tl.exp((top - higher) * cold))
        total = total * old + tl.sum(tl.exp((z - higher[None, :]) * cold[None, :]), axis=0)
        label = tl.where(here > top, start + place, label)
        top = higher
    at = image * N + n
    tl.store(confidence_ptr + at, (1.0 / total).to(confidence_ptr.dtype.element_ty), mask=n < N)
    tl.store(label_ptr + at, label.to(tl.int64), mask=n < N)


def confidence_and_label(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Twin of `segcal.functional.division.confidence_and_label`, computed in float32."""
    if logits.dtype not in PRECISIONS or temperature.dtype not in PRECISIONS or not logits.numel():
        return DECLINED  # type: ignore[return-value]
    z, heat = laid_flat(logits), laid_flat(temperature)
    images, classes, pixels = z.shape
    rows, columns = tile_shape(classes)
    confidence = torch.empty((images, pixels), dtype=logits.dtype, device=logits.device)
    label = torch.empty((images, pixels), dtype=torch.int64, device=logits.device)
    with on_device(logits):
        _confidence[(triton.cdiv(pixels, columns), images)](
            z, heat, confidence, label, classes, pixels, *z.stride(), heat.stride(0), heat.stride(2),
            BL=rows, BN=columns, num_warps=WARPS,
        )  # fmt: skip
    shape = (images, *logits.shape[2:])
    return confidence.view(shape), label.view(shape)


_KEEP = tl.constexpr(tl.PropagateNan.ALL)


@triton.jit
def _within(values_ptr, factor_ptr, floor_ptr, out_ptr, N, low, high, BN: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    factor, floor = tl.load(factor_ptr).to(tl.float32), tl.load(floor_ptr).to(tl.float32)
    found = tl.load(values_ptr + n, mask=n < N, other=0.0) * factor
    found = tl.maximum(tl.minimum(tl.maximum(found, low, _KEEP), high, _KEEP), floor, _KEEP)
    tl.store(out_ptr + n, found, mask=n < N)


def scaled_within(values: Tensor, factor: Tensor, floor: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Twin of `segcal.functional.division.scaled_within`, for float32."""
    if values.dtype != torch.float32 or not values.numel() or not values.is_contiguous():
        return DECLINED
    found, block = torch.empty_like(values), 1024
    with on_device(values):
        _within[(triton.cdiv(values.numel(), block),)](
            values, factor, floor, found, values.numel(), *(float(bound) for bound in bounds), BN=block, num_warps=4
        )
    return found
