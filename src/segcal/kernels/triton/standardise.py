"""Standardised log-probabilities on CUDA: one read of the logits and one write of the result, in float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.kernels.constants import SMALLEST_LOG_PROBABILITY
from segcal.kernels.dispatch import DECLINED
from segcal.kernels.triton.launching import PRECISIONS, launch, pieces
from segcal.kernels.triton.softmax import TILE, WARPS, laid_flat, possible, read, summarised, tile_shape

_SMALLEST = tl.constexpr(SMALLEST_LOG_PROBABILITY)


@triton.jit
def _standardised(
    z_ptr, scale_ptr, mean_ptr, deviation_ptr, out_ptr, L, N, zb, zl, zn,
    WHOLE: tl.constexpr, BL: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    scale = tl.load(scale_ptr).to(tl.float32)
    if WHOLE:
        c = tl.arange(0, BL)
        z = read(z_ptr + image * zb, c, n, L, N, zl, zn)
        top = tl.max(z, axis=0)
        z = possible(z, top, c, L, z_ptr.dtype.element_ty)
        below = (z - top[None, :]) * scale
        rest = tl.log(tl.sum(tl.where((c < L)[:, None], tl.exp(below), 0.0), axis=0))
        _write(mean_ptr, deviation_ptr, out_ptr + image * L * N, c, n, L, N, below - rest[None, :])
    else:
        cold = tl.full([BN], 1.0, tl.float32) * scale
        top, total = summarised(z_ptr + image * zb, n, cold, L, N, zl, zn, BL, BN)
        rest = tl.log(total)
        for start in range(0, L, BL):
            c = start + tl.arange(0, BL)
            z = possible(read(z_ptr + image * zb, c, n, L, N, zl, zn), top, c, L, z_ptr.dtype.element_ty)
            below = (z - top[None, :]) * scale
            _write(mean_ptr, deviation_ptr, out_ptr + image * L * N, c, n, L, N, below - rest[None, :])


@triton.jit
def _write(mean_ptr, deviation_ptr, out_ptr, c, n, L, N, log_probs):
    mean = tl.load(mean_ptr + c, mask=c < L, other=0.0)
    deviation = tl.load(deviation_ptr + c, mask=c < L, other=1.0)
    found = (tl.maximum(log_probs, _SMALLEST) - mean[:, None]) / deviation[:, None]
    at = c.to(tl.int64)[:, None] * N + n.to(tl.int64)[None, :]
    tl.store(out_ptr + at, found, mask=(c < L)[:, None] & (n < N)[None, :])


def standardised_log_probabilities(
    logits: Tensor, inverse_temperature: Tensor, mean: Tensor, deviation: Tensor
) -> Tensor:
    """Twin of `segcal.functional.standardise.standardised_log_probabilities`, computed in float32."""
    if logits.dtype not in PRECISIONS or not logits.numel():
        return DECLINED
    if mean.dtype != torch.float32 or deviation.dtype != torch.float32:
        return DECLINED
    z = laid_flat(logits)
    images, classes, pixels = z.shape
    rows, columns = tile_shape(classes)
    found = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    launch(
        _standardised, (pieces(pixels, columns), images),
        z, inverse_temperature, mean.contiguous(), deviation.contiguous(), found, classes, pixels, *z.stride(),
        WHOLE=classes <= TILE, BL=rows, BN=columns, num_warps=WARPS,
    )  # fmt: skip
    return found
