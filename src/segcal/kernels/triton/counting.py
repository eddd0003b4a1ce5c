"""The evidence of a batch on CUDA in one read of the logits: check, describe, bin and sum, with exact counts.

A thread holds whole pixels and goes through their classes, so that nothing is exchanged between threads. Each pixel is
then added to the table of its region, predicted class and cell of confidence (one of 65,536), by two atomic additions
of integers: one of 1 and, in the lower half of the number, of whether it is right, and one of the distance of its
confidence from a number that its cell stands for, in fixed point. Confidences spread over many cells, so that additions
rarely wait for each other, and those of integers give the same bits in any order.

A second, small pass adds this table to the totals, and the cells of a bin to the bin. A few cells contain the edge of a
bin; pixels on the other side of the edge are noted in the first pass and moved.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.kernels.constants import CELLS, LOW_OCTAVES
from segcal.kernels.dispatch import DECLINED
from segcal.kernels.triton.softmax import PRECISIONS, laid_flat, on_device

_REPLICAS = 64  # of the counts that all programs add to
_PIXELS = 256  # of a program
_UNROLLED = 4  # classes whose logits are read at the same time
_CHUNK = 1024  # cells of a program of the second pass

_CELLS = tl.constexpr(CELLS)
_LOW = tl.constexpr((1022 - LOW_OCTAVES) << 10)
_HIGH = tl.constexpr(CELLS - 1 + ((958 + LOW_OCTAVES) << 10))
_SPLIT = tl.constexpr(LOW_OCTAVES << 10)  # the first cell above 1/2
_UNIT = tl.constexpr(2.0**43)  # in a unit of which distances are at most 32 bits long


@triton.jit
def _cell_of(confidence):
    """See `segcal.functional.counting.cell_of`."""
    low = (confidence.to(tl.int64, bitcast=True) >> 42) - _LOW
    high = _HIGH - ((1.0 - confidence).to(tl.int64, bitcast=True) >> 42)
    cell = tl.where(confidence < 0.5, low, high)
    return tl.minimum(tl.maximum(cell, 0), _CELLS - 1)


@triton.jit
def _reference(cell):
    """Return the confidence that a cell stands for: its lower edge below 1/2, its upper edge above."""
    low = ((cell + _LOW) << 42).to(tl.float64, bitcast=True)
    high = 1.0 - ((-cell + _HIGH) << 42).to(tl.float64, bitcast=True)
    return tl.where(cell < _SPLIT, low, high)


@triton.jit
def _bin_of(confidence, edge_ptr, R):
    bins = (confidence > 2.0).to(tl.int32)
    for edge in range(1, R):
        bins += (confidence > tl.load(edge_ptr + edge)).to(tl.int32)
    return bins


@triton.jit
def _higher(z_ptr, inside, c, top, winner, strange):
    """Compare one more class; `strange` becomes NaN where a logit is not finite."""
    z = tl.load(z_ptr, mask=inside, other=0.0).to(tl.float32)
    strange += z * 0.0
    winner = tl.where(z > top, c, winner)
    return tl.maximum(top, z), winner, strange


@triton.jit
def _add_class(z_ptr, inside, c, top, label, total, squares, weighted, truth):
    """Add one more class to the sums of each pixel, in float64."""
    below = tl.load(z_ptr, mask=inside, other=0.0).to(tl.float64) - top
    power = tl.exp(below)
    truth = tl.where(c == label, below, truth)
    return total + power, squares + power * power, weighted + power * below, truth


@triton.jit
def _statistics(z_ptr, inside, label, L, zl, UNROLLED: tl.constexpr, BN: tl.constexpr):
    """Return confidence, predicted class, NLL, Brier score and entropy of each pixel, and NaN where one is strange."""
    top = tl.full([BN], float("-inf"), tl.float32)
    winner, strange = tl.zeros([BN], tl.int32), tl.zeros([BN], tl.float32)
    whole = L - L % UNROLLED
    for start in range(0, whole, UNROLLED):
        for k in tl.static_range(UNROLLED):
            top, winner, strange = _higher(z_ptr + (start + k) * zl, inside, start + k, top, winner, strange)
    for c in range(whole, L):
        top, winner, strange = _higher(z_ptr + c * zl, inside, c, top, winner, strange)
    wide = top.to(tl.float64)
    total, squares = tl.zeros([BN], tl.float64), tl.zeros([BN], tl.float64)
    weighted, truth = tl.zeros([BN], tl.float64), tl.zeros([BN], tl.float64)
    for start in range(0, whole, UNROLLED):
        for k in tl.static_range(UNROLLED):
            at = z_ptr + (start + k) * zl
            total, squares, weighted, truth = _add_class(
                at, inside, start + k, wide, label, total, squares, weighted, truth
            )
    for c in range(whole, L):
        total, squares, weighted, truth = _add_class(
            z_ptr + c * zl, inside, c, wide, label, total, squares, weighted, truth
        )
    share, log_total = 1.0 / total, tl.log(total)
    brier = squares * share * share - 2.0 * tl.exp(truth) * share + 1.0
    return share, winner, log_total - truth, brier, log_total - weighted * share, strange


@triton.jit
def _check(label_ptr, ignored_ptr, n, at, N, L, IGNORED: tl.constexpr):
    """Return the label of each pixel, whether it counts, and whether it is invalid."""
    label = tl.load(label_ptr + at, mask=n < N, other=0).to(tl.int64)
    skip = n >= N
    for k in tl.static_range(IGNORED):
        skip = skip | (label == tl.load(ignored_ptr + k))
    wrong = ((label < 0) | (label >= L)) & (skip == 0)
    return label.to(tl.int32), (skip == 0) & (wrong == 0), wrong


@triton.jit
def _note(problem_ptr, bad, place):
    """Keep the largest place, which is that of the first problem."""
    found = tl.max(tl.where(bad, place, 0), axis=0)
    if found > 0:  # rare, so that programs do not wait for each other
        tl.atomic_max(problem_ptr, found)


@triton.jit
def _move(moved_ptr, size, key, sign, correct, fixed, mask):
    """Add pixels to a bin, or take them away: their number, how many are right, and their confidence in two parts."""
    tl.atomic_add(moved_ptr + key, sign, mask=mask, sem="relaxed")
    tl.atomic_add(moved_ptr + size + key, sign * correct, mask=mask, sem="relaxed")
    tl.atomic_add(moved_ptr + 2 * size + key, sign * (fixed >> 22), mask=mask, sem="relaxed")
    tl.atomic_add(moved_ptr + 3 * size + key, sign * (fixed & 4194303), mask=mask, sem="relaxed")


@triton.jit
def _batch(
    z_ptr, label_ptr, mask_ptr, ignored_ptr, edge_ptr, packed_ptr, distance_ptr, moved_ptr, missed_ptr, sums_ptr,
    problem_ptr, first, L, N, R, G, images, replicas, zb, zl, zn,
    MASKED: tl.constexpr, IGNORED: tl.constexpr, UNROLLED: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    tile, tiles, image = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    n = tile * BN + tl.arange(0, BN)
    at = image * N + n
    label, valid, wrong = _check(label_ptr, ignored_ptr, n, at, N, L, IGNORED)
    pixels = z_ptr + image * zb + n.to(tl.int64) * zn
    confidence, winner, nll, brier, entropy, strange = _statistics(pixels, n < N, label, L, zl, UNROLLED, BN)
    _note(problem_ptr, wrong, first - at)
    _note(problem_ptr + 1, (strange != 0.0) & (n < N), first - at)
    valid = valid & (strange == 0.0)
    confidence = tl.where(valid, confidence, 1.0)
    cell = _cell_of(confidence)
    reference = _reference(cell)
    distance = tl.floor((confidence - reference) * _UNIT + 0.5).to(tl.int64)
    own, usual = _bin_of(confidence, edge_ptr, R), _bin_of(reference, edge_ptr, R)
    fixed = tl.floor(confidence * (2.0 * _UNIT) + 0.5).to(tl.int64)
    right = label == winner
    correct, zero = right.to(tl.int64), image * 0  # in int64, as products of sizes are that start with it
    size, every = (zero + L) * R, (zero + images) * N
    for region in range(G):
        inside = valid
        if MASKED:
            there = mask_ptr + region * every + at
            inside = inside & (tl.load(there, mask=n < N, other=0) != 0)
        place = (zero + region * L + winner) * _CELLS + cell
        tl.atomic_add(packed_ptr + place, 4294967296 + correct, mask=inside, sem="relaxed")
        tl.atomic_add(distance_ptr + place, distance, mask=inside, sem="relaxed")
        missed = missed_ptr + (region * replicas + tile % replicas) * L + label
        tl.atomic_add(missed, 1, mask=inside & (right == 0), sem="relaxed")
        moved, odd = moved_ptr + region * 4 * size, inside & (own != usual)
        _move(moved, size, winner.to(tl.int64) * R + own, 1, correct, fixed, odd)
        _move(moved, size, winner.to(tl.int64) * R + usual, -1, correct, fixed, odd)
        to = sums_ptr + ((region * images + image) * tiles + tile) * 3
        tl.store(to, tl.sum(tl.where(inside, nll, 0.0), axis=0))
        tl.store(to + 1, tl.sum(tl.where(inside, brier, 0.0), axis=0))
        tl.store(to + 2, tl.sum(tl.where(inside, entropy, 0.0), axis=0))


@triton.jit
def _collect(
    packed_ptr, distance_ptr, edge_ptr, count_ptr, hit_ptr, total_ptr, tables_ptr, confidence_ptr, R,
    BC: tl.constexpr,
):  # fmt: skip
    """Add the cells of a region and class to the totals, and their sums by bin to tables."""
    row, chunk, chunks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    cell = chunk * BC + tl.arange(0, BC).to(tl.int64)
    at = row * _CELLS + cell
    packed = tl.load(packed_ptr + at)
    count, hit = packed >> 32, packed & 4294967295
    if tl.max(count, axis=0) > 0:
        some, reference = count > 0, _reference(cell)
        total = count.to(tl.float64) * reference + tl.load(distance_ptr + at).to(tl.float64) * (1.0 / _UNIT)
        tl.store(count_ptr + at, tl.load(count_ptr + at, mask=some, other=0) + count, mask=some)
        tl.store(hit_ptr + at, tl.load(hit_ptr + at, mask=some, other=0) + hit, mask=some)
        tl.store(total_ptr + at, tl.load(total_ptr + at, mask=some, other=0.0) + total, mask=some)
        bins = _bin_of(reference, edge_ptr, R)
        to = row * chunks + chunk
        for r in range(tl.min(bins, axis=0), tl.max(bins, axis=0) + 1):
            tl.store(tables_ptr + to * 2 * R + r, tl.sum(tl.where(bins == r, count, 0), axis=0))
            tl.store(tables_ptr + to * 2 * R + R + r, tl.sum(tl.where(bins == r, hit, 0), axis=0))
            tl.store(confidence_ptr + to * R + r, tl.sum(tl.where(bins == r, total, 0.0), axis=0))


def add_unchecked_batch(
    logits: Tensor,
    labels: Tensor,
    masks: Tensor | None,
    ignored: Tensor,
    edges: Tensor,
    totals: tuple[Tensor, ...],
    problems: Tensor,
    number: int,
) -> None:
    """Twin of `segcal.functional.counting.add_unchecked_batch`."""
    cells = totals[5:]
    if logits.dtype not in PRECISIONS or not all(table.is_contiguous() for table in cells):
        return DECLINED  # type: ignore[return-value]
    if not logits.numel():
        return None
    z, (regions, _, bins), device = laid_flat(logits), totals[0].shape, logits.device
    images, classes, pixels = z.shape
    tiles, chunks = triton.cdiv(pixels, _PIXELS), CELLS // _CHUNK
    packed, distance = torch.zeros((2, regions, classes, CELLS), dtype=torch.int64, device=device)
    counts = torch.zeros(
        regions * classes * (4 * bins + _REPLICAS + chunks * 2 * bins), dtype=torch.int64, device=device
    )
    sizes = [regions * classes * each for each in (4 * bins, _REPLICAS, chunks * 2 * bins)]
    moved, missed, tables = counts.split(sizes)
    confidence = torch.zeros((regions, classes, chunks, bins), dtype=torch.float64, device=device)
    sums = torch.empty((regions, images * tiles, 3), dtype=torch.float64, device=device)
    first = (1 << 62) - (number << 40)  # see `segcal.functional.counting.place_of_problem`
    inside = labels if masks is None else masks.contiguous().view(torch.uint8)
    with on_device(logits):
        _batch[(tiles, images)](
            z, labels.contiguous(), inside, ignored, edges, packed, distance, moved, missed, sums, problems, first,
            classes, pixels, bins, regions, images, _REPLICAS, *z.stride(), MASKED=masks is not None,
            IGNORED=len(ignored), UNROLLED=_UNROLLED, BN=_PIXELS, num_warps=4,
        )  # fmt: skip
        _collect[(regions * classes, chunks)](
            packed, distance, edges, *cells, tables, confidence, bins, BC=_CHUNK, num_warps=4
        )
    by_bin = tables.view(regions, classes, chunks, 2, bins).sum(dim=2).movedim(2, 0)
    change = moved.view(regions, 4, classes, bins).movedim(1, 0)
    totals[0].add_(by_bin[0] + change[0])
    totals[1].add_(by_bin[1] + change[1])
    totals[2].add_(confidence.sum(dim=2) + (change[2].double() * 2.0**-22 + change[3].double() * 2.0**-44))
    totals[3].add_(by_bin[1].sum(dim=-1) + missed.view(regions, _REPLICAS, classes).sum(dim=1))
    totals[4].add_(sums.sum(dim=1))
    return None
