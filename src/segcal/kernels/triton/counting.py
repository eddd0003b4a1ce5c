"""The evidence of a batch on CUDA in one read of the logits: describe, bin and sum, with exact counts.

Each of a fixed number of programs goes through tiles of pixels and keeps its own tables, so that the order of
additions, and with it every bit of the result, depends neither on the device nor on timing. Within a tile, most
pixels fall into few cells, where atomic additions would wait for each other. So a tile's table is a product of two
one-hot matrices, classes by pixels and pixels by bins, which the tensor cores multiply exactly. Confidences are
summed the same way, in five digits of 11 bits, each of which float16 holds exactly: a fixed-point sum with a
resolution of 2**-55.

The 65,536 cells are counted by atomic additions: confidences spread over many of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.kernels.constants import CELLS, LOW_OCTAVES
from segcal.kernels.dispatch import DECLINED
from segcal.kernels.triton.pixels import read_wide, statistics_of_tile
from segcal.kernels.triton.softmax import PRECISIONS, TILE, laid_flat, on_device

_PROGRAMS = 1056  # eight for each multiprocessor of the largest devices
_MOST_BINS = 64

_CELLS = tl.constexpr(CELLS)
_LOW = tl.constexpr((1022 - LOW_OCTAVES) << 10)
_HIGH = tl.constexpr(CELLS - 1 + ((958 + LOW_OCTAVES) << 10))


@triton.jit
def _cell_of(confidence):
    """See `segcal.functional.counting.cell_of`."""
    low = (confidence.to(tl.int64, bitcast=True) >> 42) - _LOW
    high = _HIGH - ((1.0 - confidence).to(tl.int64, bitcast=True) >> 42)
    cell = tl.where(confidence < 0.5, low, high)
    return tl.minimum(tl.maximum(cell, 0), _CELLS - 1)


@triton.jit
def _batch(
    z_ptr, label_ptr, mask_ptr, edge_ptr, counts_ptr, digits_ptr, support_ptr, sums_ptr,
    cell_count_ptr, cell_hit_ptr, cell_total_ptr, L, N, R, images, tiles, zb, zl, zn,
    BL: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    program, programs, region = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    c, r = tl.arange(0, BL), tl.arange(0, BR)
    count, hit = tl.zeros([BL, BR], tl.int32), tl.zeros([BL, BR], tl.int32)
    coarse, fine = tl.zeros([BL, BR], tl.int64), tl.zeros([BL, BR], tl.int64)
    support = tl.zeros([BL], tl.int32)
    nll_sum, brier_sum, entropy_sum = tl.zeros([BN], tl.float64), tl.zeros([BN], tl.float64), tl.zeros([BN], tl.float64)
    for tile in range(program, images * tiles, programs):
        image = (tile // tiles).to(tl.int64)
        n = (tile % tiles) * BN + tl.arange(0, BN)
        at = image * N + n
        label = tl.load(label_ptr + at, mask=n < N, other=-1).to(tl.int32)
        inside = tl.load(mask_ptr + region * images * N + at, mask=n < N, other=0) != 0
        inside = inside & (label >= 0)
        z = read_wide(z_ptr + image * zb, c, n, L, N, zl, zn)
        z = tl.where((n < N)[None, :], z, 0.0)  # pixels beyond the image have finite statistics that do not count
        confidence, winner, nll, brier, entropy = statistics_of_tile(z, c, label)
        nll_sum += tl.where(inside, nll, 0.0)
        brier_sum += tl.where(inside, brier, 0.0)
        entropy_sum += tl.where(inside, entropy, 0.0)
        support += tl.sum(((c[:, None] == label[None, :]) & inside[None, :]).to(tl.int32), axis=1)
        bins = tl.zeros([BN], tl.int32)
        for edge in range(1, R):
            bins += (confidence > tl.load(edge_ptr + edge)).to(tl.int32)
        in_bin = (bins[:, None] == r[None, :]).to(tl.float16)
        chosen = (c[:, None] == winner[None, :]) & inside[None, :]
        correct = chosen & (label == winner)[None, :]
        count += tl.dot(chosen.to(tl.float16), in_bin).to(tl.int32)
        hit += tl.dot(correct.to(tl.float16), in_bin).to(tl.int32)
        rest = confidence * 2048.0
        for digit in tl.static_range(5):
            whole = tl.floor(rest)
            part = tl.where(chosen, whole[None, :], 0.0).to(tl.float16)
            product = tl.dot(part, in_bin).to(tl.int64)
            if digit < 3:
                coarse += product << (11 * (2 - digit))
            else:
                fine += product << (11 * (4 - digit))
            rest = (rest - whole) * 2048.0
        cell = (region * L + winner) * _CELLS + _cell_of(confidence)
        tl.atomic_add(cell_count_ptr + cell, 1, mask=inside, sem="relaxed")
        tl.atomic_add(cell_hit_ptr + cell, 1, mask=inside & (label == winner), sem="relaxed")
        tl.atomic_add(cell_total_ptr + cell, confidence, mask=inside, sem="relaxed")
    own = region * programs + program
    inner = (c < L)[:, None] & (r < R)[None, :]
    at = c[:, None] * R + r[None, :]
    tl.store(counts_ptr + own * 2 * L * R + at, count.to(tl.int64), mask=inner)
    tl.store(counts_ptr + (own * 2 + 1) * L * R + at, hit.to(tl.int64), mask=inner)
    tl.store(digits_ptr + own * 2 * L * R + at, coarse, mask=inner)
    tl.store(digits_ptr + (own * 2 + 1) * L * R + at, fine, mask=inner)
    tl.store(support_ptr + own * L + c, support.to(tl.int64), mask=c < L)
    tl.store(sums_ptr + own * 3, tl.sum(nll_sum, axis=0))
    tl.store(sums_ptr + own * 3 + 1, tl.sum(brier_sum, axis=0))
    tl.store(sums_ptr + own * 3 + 2, tl.sum(entropy_sum, axis=0))


def measure_batch(
    logits: Tensor,
    labels: Tensor,
    masks: Tensor,
    edges: Tensor,
    cell_count: Tensor,
    cell_hit: Tensor,
    cell_total: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Twin of `segcal.functional.counting.measure_batch`, for up to 64 classes and bins."""
    bins, classes = len(edges) - 1, logits.shape[1]
    if logits.dtype not in PRECISIONS or not logits.numel() or classes > TILE or bins > _MOST_BINS:
        return DECLINED  # type: ignore[return-value]
    if not (cell_count.is_contiguous() and cell_hit.is_contiguous() and cell_total.is_contiguous()):
        return DECLINED  # type: ignore[return-value]
    z, regions = laid_flat(logits), len(masks)
    images, _, pixels = z.shape
    rows = max(16, triton.next_power_of_2(classes))
    columns = 2048 // rows
    tiles = triton.cdiv(pixels, columns)
    programs = min(_PROGRAMS, images * tiles)
    counts = torch.empty((regions, programs, 2, classes, bins), dtype=torch.int64, device=logits.device)
    digits, support = torch.empty_like(counts), counts.new_empty((regions, programs, classes))
    sums = torch.empty((regions, programs, 3), dtype=torch.float64, device=logits.device)
    with on_device(logits):
        _batch[(programs, regions)](
            z, labels.contiguous(), masks.contiguous().view(torch.uint8), edges, counts, digits, support, sums,
            cell_count, cell_hit, cell_total, classes, pixels, bins, images, tiles, *z.stride(),
            BL=rows, BN=columns, BR=max(16, triton.next_power_of_2(bins)), num_warps=4,
        )  # fmt: skip
    count, hit = counts.sum(dim=1).unbind(1)
    coarse, fine = digits.sum(dim=1).double().unbind(1)
    return count, hit, coarse * 2.0**-33 + fine * 2.0**-55, support.sum(dim=1), sums.sum(dim=1)
