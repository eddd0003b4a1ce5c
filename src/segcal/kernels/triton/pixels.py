"""Statistics of each pixel, and sums of the likelihood, on CUDA, in one launch and in float64."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.kernels.dispatch import DECLINED
from segcal.kernels.triton.launching import PRECISIONS, launch, pieces
from segcal.kernels.triton.softmax import TILE, tile_shape


@triton.jit
def read_wide(z_ptr, c, n, L, N, zl, zn):
    """Return the logits of classes `c` and pixels `n` in float64; -infinity outside."""
    inside = (c < L)[:, None] & (n < N)[None, :]
    at = c.to(tl.int64)[:, None] * zl + n.to(tl.int64)[None, :] * zn
    return tl.load(z_ptr + at, mask=inside, other=float("-inf")).to(tl.float64)


@triton.jit
def below_top(z, top):
    """Return logits relative to the largest, with a finite number instead of -infinity, and their exponentials."""
    below = tl.maximum(z - top[None, :], -1e300)  # of which the exponential is 0, and its product with it too
    return below, tl.exp(below)


@triton.jit
def statistics(z_ptr, n, label, L, N, zl, zn, BL: tl.constexpr, BN: tl.constexpr):
    """Return confidence, predicted class, NLL, Brier score and entropy of `BN` pixels; any number of classes.

    Up to `BL` classes are read once; more are read twice, in chunks.
    """
    top = tl.full([BN], float("-inf"), tl.float64)
    winner = tl.zeros([BN], tl.int32)
    for start in range(0, L, BL):
        z = read_wide(z_ptr, start + tl.arange(0, BL), n, L, N, zl, zn)
        here, place = tl.max(z, axis=0, return_indices=True, return_indices_tie_break_left=True)
        winner = tl.where(here > top, start + place, winner)
        top = tl.maximum(top, here)
    total, squares = tl.zeros([BN], tl.float64), tl.zeros([BN], tl.float64)
    weighted, truth = tl.zeros([BN], tl.float64), tl.zeros([BN], tl.float64)
    for start in range(0, L, BL):
        c = start + tl.arange(0, BL)
        z = read_wide(z_ptr, c, n, L, N, zl, zn)
        below, powers = below_top(z, top)
        total += tl.sum(powers, axis=0)
        squares += tl.sum(powers * powers, axis=0)
        weighted += tl.sum(powers * below, axis=0)
        truth += tl.sum(tl.where(c[:, None] == label[None, :], below, 0.0), axis=0)
    return _readings(total, squares, weighted, truth, winner)


@triton.jit
def statistics_of_tile(z, c, label):
    """Return the same for a tile that holds all classes."""
    top, winner = tl.max(z, axis=0, return_indices=True, return_indices_tie_break_left=True)
    below, powers = below_top(z, top)
    truth = tl.sum(tl.where(c[:, None] == label[None, :], below, 0.0), axis=0)
    total = tl.sum(powers, axis=0)
    return _readings(total, tl.sum(powers * powers, axis=0), tl.sum(powers * below, axis=0), truth, winner)


@triton.jit
def _readings(total, squares, weighted, truth, winner):
    share, log_total = 1.0 / total, tl.log(total)
    brier = squares * share * share - 2.0 * tl.exp(truth) * share + 1.0
    return share, winner, log_total - truth, brier, log_total - weighted * share


@triton.jit
def _pixel_statistics(
    z_ptr, label_ptr, confidence_ptr, predicted_ptr, nll_ptr, brier_ptr, entropy_ptr, L, N, zl, zn, yn,
    WHOLE: tl.constexpr, BL: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    inside = n < N
    label = tl.maximum(tl.load(label_ptr + n * yn, mask=inside, other=0), 0).to(tl.int32)
    if WHOLE:
        c = tl.arange(0, BL)
        found = statistics_of_tile(read_wide(z_ptr, c, n, L, N, zl, zn), c, label)
    else:
        found = statistics(z_ptr, n, label, L, N, zl, zn, BL, BN)
    tl.store(confidence_ptr + n, found[0], mask=inside)
    tl.store(predicted_ptr + n, found[1], mask=inside)
    tl.store(nll_ptr + n, found[2], mask=inside)
    tl.store(brier_ptr + n, found[3], mask=inside)
    tl.store(entropy_ptr + n, found[4], mask=inside)


def pixel_statistics(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Twin of `segcal.functional.pixels.pixel_statistics`."""
    if logits.dtype not in (*PRECISIONS, torch.float64) or not logits.numel():
        return DECLINED  # type: ignore[return-value]
    classes, pixels = logits.shape
    rows, columns = tile_shape(classes)
    confidence, nll, brier, entropy = (torch.empty(pixels, dtype=torch.float64, device=logits.device) for _ in range(4))
    predicted = torch.empty(pixels, dtype=torch.int32, device=logits.device)
    launch(
        _pixel_statistics, (pieces(pixels, columns),),
        logits, labels, confidence, predicted, nll, brier, entropy, classes, pixels, *logits.stride(),
        labels.stride(0), WHOLE=classes <= TILE, BL=rows, BN=columns, num_warps=4,
    )  # fmt: skip
    return confidence, predicted, nll, brier, entropy


@triton.jit
def _likelihood(
    z_ptr, label_ptr, alpha_ptr, out_ptr, L, N, zl, zn, yn, programs, BL: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    program = tl.program_id(0)
    n = program.to(tl.int64) * BN + tl.arange(0, BN)
    label = tl.load(label_ptr + n * yn, mask=n < N, other=-1).to(tl.int32)
    alpha = tl.load(alpha_ptr)
    top = tl.full([BN], float("-inf"), tl.float64)
    for start in range(0, L, BL):
        top = tl.maximum(top, tl.max(read_wide(z_ptr, start + tl.arange(0, BL), n, L, N, zl, zn), axis=0))
    total, first = tl.zeros([BN], tl.float64), tl.zeros([BN], tl.float64)
    second, mean = tl.zeros([BN], tl.float64), tl.zeros([BN], tl.float64)
    truth = tl.zeros([BN], tl.float64)
    known = label >= 0
    origin = tl.where(known, top, 0.0)
    for start in range(0, L, BL):
        c = start + tl.arange(0, BL)
        held = (c < L)[:, None] & known[None, :]
        below = tl.where(held, read_wide(z_ptr, c, n, L, N, zl, zn) - origin[None, :], 0.0)
        power = tl.where(held, tl.exp(alpha * below), 0.0)
        total += tl.sum(power, axis=0)
        first += tl.sum(power * below, axis=0)
        second += tl.sum(power * below * below, axis=0)
        mean += tl.sum(below, axis=0)
        truth += tl.sum(tl.where(c[:, None] == label[None, :], below, 0.0), axis=0)
    total = tl.where(known, total, 1.0)
    average, mean = first / total, mean / L
    curvature = tl.maximum(second / total - average * average, 0.0)
    nll = tl.log(total) - alpha * truth
    terms = (known.to(tl.float64), nll, average - truth, curvature, mean - truth, -truth)
    for k in tl.static_range(6):
        tl.store(out_ptr + k * programs + program, tl.sum(tl.where(known, terms[k], 0.0)))


def likelihood_sums(logits: Tensor, labels: Tensor, alpha: float) -> Tensor:
    """Twin of `segcal.functional.pixels.likelihood_sums`."""
    if logits.dtype not in (*PRECISIONS, torch.float64) or not logits.numel():
        return DECLINED
    classes, pixels = logits.shape
    rows, columns = tile_shape(classes)
    programs = pieces(pixels, columns)
    parts = torch.empty((6, programs), dtype=torch.float64, device=logits.device)
    launch(
        _likelihood, (programs,), logits, labels, torch.full_like(parts[0, :1], alpha), parts, classes, pixels,
        *logits.stride(), labels.stride(0), programs, BL=rows, BN=columns, num_warps=4,
    )  # fmt: skip
    return parts.sum(dim=1)
