"""The evidence of a batch on CUDA in one read of the logits: check, describe, bin and sum, with exact counts.

A thread holds whole pixels and goes through their classes, so that nothing is exchanged between threads. Each pixel is
then added to the table of its region, predicted class and cell of confidence (one of 65,536), by two atomic additions
of integers: one of 1 and, in the lower half of the number, of whether it is right, and one of the distance of its
confidence from a number that its cell stands for, in fixed point. Confidences spread over many cells, so that additions
rarely wait for each other, and those of integers give the same bits in any order.

A second, small pass adds this table to the totals and the cells of a bin to the bin; a third adds the bins to the
totals. A few cells contain the edge of a bin; pixels on the other side of the edge are noted in the first pass, and
moved.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.kernels.constants import CELLS, OCTAVES
from segcal.kernels.dispatch import DECLINED, has_values
from segcal.kernels.triton.launching import PRECISIONS, current_stream, launch, pieces
from segcal.kernels.triton.softmax import impossible_logit, laid_flat

_REPLICAS = 64  # of the counts that all programs add to
_PIXELS = 256  # of a program
_UNROLLED = 4  # classes whose logits are read at the same time
_CHUNKS = 64  # of cells, each for a program of the second pass
_MOST_KEPT = 8

_CELLS = tl.constexpr(CELLS)
_HALF = tl.constexpr(CELLS // 2)  # the first cell above 1/2
_FIRST = tl.constexpr((1022 - OCTAVES) << 9)
_UNIT = tl.constexpr(2.0**43)  # in a unit of which distances are at most 32 bits long


@triton.jit
def _cell_of(confidence):
    """See `segcal.functional.scores.cell_of`."""
    near = (tl.minimum(confidence, 1.0 - confidence).to(tl.int64, bitcast=True) >> 43) - _FIRST
    near = tl.minimum(tl.maximum(near, 0), _HALF - 1)
    return tl.where(confidence < 0.5, near, _CELLS - 1 - near)


@triton.jit
def _reference(cell):
    """Return the confidence that a cell stands for: its lower edge below 1/2, its upper edge above."""
    near = tl.where(cell < _HALF, cell, _CELLS - 1 - cell)
    distance = ((near + _FIRST) << 43).to(tl.float64, bitcast=True)
    return tl.where(cell < _HALF, distance, 1.0 - distance)


@triton.jit
def _bin_of(confidence, edge_ptr, R):
    bins = (confidence > 2.0).to(tl.int32)
    for edge in range(1, R):
        bins += (confidence > tl.load(edge_ptr + edge)).to(tl.int32)
    return bins


@triton.jit
def _higher(z_ptr, inside, c, top, winner):
    """Compare one more class."""
    z = tl.load(z_ptr, mask=inside, other=0.0).to(tl.float32)
    winner = tl.where(z > top, c, winner)
    return tl.maximum(top, z), winner


@triton.jit
def _add_class(z_ptr, inside, c, top, lowest, label, total, squares, weighted, truth):
    """Add one more class to the sums of each pixel, in float64; `lowest` stands for an impossible class."""
    z = tl.load(z_ptr, mask=inside, other=0.0).to(tl.float32)
    below = tl.where(z == float("-inf"), lowest, z).to(tl.float64) - top
    power = tl.exp(below)
    truth = tl.where(c == label, below, truth)
    return total + power, squares + power * power, weighted + power * below, truth


@triton.jit
def _statistics(z_ptr, inside, label, L, zl, UNROLLED: tl.constexpr, BN: tl.constexpr):
    """Return confidence, predicted class, NLL, Brier score and entropy of each pixel, and whether its logits are valid.

    They are not if one is NaN or +infinity, or all are -infinity: the sum of exponentials is then NaN or infinite.
    """
    top = tl.full([BN], float("-inf"), tl.float32)
    winner = tl.zeros([BN], tl.int32)
    whole = L - L % UNROLLED
    for start in range(0, whole, UNROLLED):
        for k in tl.static_range(UNROLLED):
            top, winner = _higher(z_ptr + (start + k) * zl, inside, start + k, top, winner)
    for c in range(whole, L):
        top, winner = _higher(z_ptr + c * zl, inside, c, top, winner)
    wide, lowest = top.to(tl.float64), impossible_logit(top, z_ptr.dtype.scalar.element_ty)
    total, squares = tl.zeros([BN], tl.float64), tl.zeros([BN], tl.float64)
    weighted, truth = tl.zeros([BN], tl.float64), tl.zeros([BN], tl.float64)
    for start in range(0, whole, UNROLLED):
        for k in tl.static_range(UNROLLED):
            at = z_ptr + (start + k) * zl
            total, squares, weighted, truth = _add_class(
                at, inside, start + k, wide, lowest, label, total, squares, weighted, truth
            )
    for c in range(whole, L):
        total, squares, weighted, truth = _add_class(
            z_ptr + c * zl, inside, c, wide, lowest, label, total, squares, weighted, truth
        )
    share, log_total = 1.0 / total, tl.log(total)
    brier = squares * share * share - 2.0 * tl.exp(truth) * share + 1.0
    return share, winner, log_total - truth, brier, log_total - weighted * share, total < float("inf")


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
    zero = image * 0  # in int64, as products of sizes are that start with it
    confidence, winner, nll, brier, entropy, sound = _statistics(pixels, n < N, label, L, zero + zl, UNROLLED, BN)
    _note(problem_ptr, wrong, first - at)
    _note(problem_ptr + 1, (sound == 0) & (n < N), first - at)
    valid = valid & sound
    confidence = tl.where(valid, confidence, 1.0)
    cell = _cell_of(confidence)
    reference = _reference(cell)
    distance = tl.floor((confidence - reference) * _UNIT + 0.5).to(tl.int64)
    own, usual = _bin_of(confidence, edge_ptr, R), _bin_of(reference, edge_ptr, R)
    fixed = tl.floor(confidence * (2.0 * _UNIT) + 0.5).to(tl.int64)
    right = label == winner
    correct = right.to(tl.int64)
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
    """Add the cells of a region and class to the totals and their sums by bin to tables, and set the cells to 0."""
    row, chunk, chunks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    cell = chunk * BC + tl.arange(0, BC).to(tl.int64)
    at = row * _CELLS + cell
    packed = tl.load(packed_ptr + at)
    count, hit = packed >> 32, packed & 4294967295
    if tl.max(count, axis=0) > 0:
        some, reference = count > 0, _reference(cell)
        total = count.to(tl.float64) * reference + tl.load(distance_ptr + at).to(tl.float64) * (1.0 / _UNIT)
        tl.store(packed_ptr + at, 0, mask=some)
        tl.store(distance_ptr + at, 0, mask=some)
        tl.store(count_ptr + at, tl.load(count_ptr + at, mask=some, other=0) + count, mask=some)
        tl.store(hit_ptr + at, tl.load(hit_ptr + at, mask=some, other=0) + hit, mask=some)
        tl.store(total_ptr + at, tl.load(total_ptr + at, mask=some, other=0.0) + total, mask=some)
        bins = _bin_of(reference, edge_ptr, R)
        to = row * chunks + chunk
        for r in range(tl.min(bins, axis=0), tl.max(bins, axis=0) + 1):
            tl.store(tables_ptr + to * 2 * R + r, tl.sum(tl.where(bins == r, count, 0), axis=0))
            tl.store(tables_ptr + to * 2 * R + R + r, tl.sum(tl.where(bins == r, hit, 0), axis=0))
            tl.store(confidence_ptr + to * R + r, tl.sum(tl.where(bins == r, total, 0.0), axis=0))


@triton.jit
def _take(ptr):
    """Read numbers, and set them to 0."""
    found = tl.load(ptr)
    tl.store(ptr, 0)
    return found


@triton.jit
def _add(ptr, value):
    tl.store(ptr, tl.load(ptr) + value)


@triton.jit
def _finish(
    tables_ptr, confidence_ptr, moved_ptr, missed_ptr, sums_ptr, count_ptr, hit_ptr, total_ptr, support_ptr, to_ptr,
    L, R, tiles, CHUNKS: tl.constexpr, REPLICAS: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Add the bins of a region and class to the totals, and for the first class the sums of the region."""
    row = tl.program_id(0).to(tl.int64)
    region, own = row // L, row % L
    chunk = row * CHUNKS + tl.arange(0, CHUNKS)
    change = moved_ptr + region * 4 * L * R + own * R
    right = row * 0
    for r in range(R):
        hit = tl.sum(_take(tables_ptr + chunk * 2 * R + R + r), axis=0)
        right += hit
        confidence = tl.sum(_take(confidence_ptr + chunk * R + r), axis=0)
        high, low = _take(change + 2 * L * R + r), _take(change + 3 * L * R + r)
        _add(count_ptr + row * R + r, tl.sum(_take(tables_ptr + chunk * 2 * R + r), axis=0) + _take(change + r))
        _add(hit_ptr + row * R + r, hit + _take(change + L * R + r))
        part = high.to(tl.float64) * (2.0 / 8388608.0) + low.to(tl.float64) * (0.5 / _UNIT)
        _add(total_ptr + row * R + r, confidence + part)
    missed = _take(missed_ptr + (region * REPLICAS + tl.arange(0, REPLICAS)) * L + own)
    _add(support_ptr + row, right + tl.sum(missed, axis=0))
    if own == 0:
        for k in range(3):
            parts = tl.zeros([BT], tl.float64)
            for start in range(0, tiles, BT):
                tile = start + tl.arange(0, BT)
                parts += tl.load(sums_ptr + (region * tiles + tile) * 3 + k, mask=tile < tiles, other=0.0)
            _add(to_ptr + region * 3 + k, tl.sum(parts, axis=0))


class _Scratch(NamedTuple):
    """Memory for the counts of a batch, all 0 between batches: the kernels that read them set them back."""

    packed: Tensor  # int64 [G L, cells]: pixels, and right ones in the lower half
    distance: Tensor  # int64 [G L, cells], in fixed point
    moved: Tensor  # int64 [G, 4, L, R]: pixels moved between bins
    missed: Tensor  # int64 [G, replicas, L]: wrong pixels by true class
    tables: Tensor  # int64 [G L, chunks, 2, R]: cells by bin
    confidence: Tensor  # float64 [G L, chunks, R]

    @classmethod
    def empty(cls, regions: int, classes: int, bins: int, device: torch.device) -> _Scratch:
        """Return memory for G regions, L classes and R bins."""
        rows = regions * classes
        packed, distance = torch.zeros((2, rows, CELLS), dtype=torch.int64, device=device)
        counts = torch.zeros(rows * (4 * bins + _REPLICAS + _CHUNKS * 2 * bins), dtype=torch.int64, device=device)
        moved, missed, tables = counts.split([rows * each for each in (4 * bins, _REPLICAS, _CHUNKS * 2 * bins)])
        confidence = torch.zeros((rows, _CHUNKS, bins), dtype=torch.float64, device=device)
        return cls(packed, distance, moved, missed, tables, confidence)


_kept: dict[tuple[Any, ...], _Scratch] = {}


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
    if logits.dtype not in PRECISIONS or not all(table.is_contiguous() for table in totals):
        return DECLINED  # type: ignore[return-value]
    if not logits.numel():
        return None
    z, (regions, _, bins), device = laid_flat(logits), totals[0].shape, logits.device
    images, classes, pixels = z.shape
    tiles, rows = pieces(pixels, _PIXELS), regions * classes
    # taken out while in use, so that threads do not share it; streams have their own, as they run side by side
    key = (device, current_stream(logits), regions, classes, bins)
    scratch = _kept.pop(key, None) or _Scratch.empty(regions, classes, bins, device)
    packed, distance, moved, missed, tables, confidence = scratch
    sums = torch.empty((regions, images * tiles, 3), dtype=torch.float64, device=device)
    first = (1 << 62) - (number << 40)  # see `segcal.functional.counting.place_of_problem`
    inside = labels if masks is None else masks.contiguous().view(torch.uint8)
    launch(
        _batch, (tiles, images),
        z, labels.contiguous(), inside, ignored, edges, packed, distance, moved, missed, sums, problems, first,
        classes, pixels, bins, regions, images, _REPLICAS, *z.stride(), MASKED=masks is not None,
        IGNORED=len(ignored), UNROLLED=_UNROLLED, BN=_PIXELS, num_warps=4,
    )  # fmt: skip
    launch(
        _collect, (rows, _CHUNKS), packed, distance, edges, *totals[5:], tables, confidence, bins,
        BC=CELLS // _CHUNKS, num_warps=4,
    )  # fmt: skip
    launch(
        _finish, (rows,), tables, confidence, moved, missed, sums, *totals[:5], classes, bins, images * tiles,
        CHUNKS=_CHUNKS, REPLICAS=_REPLICAS, BT=1024, num_warps=4,
    )  # fmt: skip
    if len(_kept) < _MOST_KEPT and has_values(logits):  # a graph that is captured keeps its own
        _kept[key] = scratch
    return None
