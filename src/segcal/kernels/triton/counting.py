"""The evidence of a batch on CUDA in one read of the logits: check, describe, bin and sum, with exact counts.

Each of a fixed number of programs goes through tiles of pixels and keeps its own tables, so that the order of
additions, and with it every bit of the result, depends neither on the device nor on timing. A thread holds whole
pixels and goes through their classes, so that nothing is exchanged between threads while statistics are computed.

Most pixels fall into few bins, where atomic additions would wait for each other. So a tile's table is a product of two
matrices, classes by pixels and pixels by bins, which the tensor cores multiply exactly. Confidences are summed the same
way, in four digits of 11 bits, each of which float16 holds exactly: a fixed-point sum with a resolution of 2**-44.

The 65,536 cells are counted by atomic additions: confidences spread over many of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.kernels.constants import CELLS, LOW_OCTAVES
from segcal.kernels.dispatch import DECLINED
from segcal.kernels.triton.softmax import PRECISIONS, laid_flat, on_device

_PROGRAMS = 1056  # eight for each multiprocessor of the largest devices
_REPLICAS = 64  # of the tables that programs share where there are too many classes for a product
_MOST_CLASSES, _MOST_BINS = 64, 64
_PIXELS = 256  # of a tile
_UNROLLED = 8  # classes whose logits are read at the same time

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
def _check(label_ptr, mask_ptr, ignored_ptr, n, at, region, images, N, L, IGNORED: tl.constexpr, MASKED: tl.constexpr):
    """Return the label of each pixel, whether it counts in a region, and whether it is invalid."""
    there = n < N
    label = tl.load(label_ptr + at, mask=there, other=0).to(tl.int64)
    skip = n >= N
    for k in tl.static_range(IGNORED):
        skip = skip | (label == tl.load(ignored_ptr + k))
    wrong = ((label < 0) | (label >= L)) & (skip == 0)
    inside = (skip == 0) & (wrong == 0)
    if MASKED:
        inside = inside & (tl.load(mask_ptr + region * images * N + at, mask=there, other=0) != 0)
    return label.to(tl.int32), inside, wrong


@triton.jit
def _note(problem_ptr, bad, place):
    """Keep the largest place, which is that of the first problem."""
    found = tl.max(tl.where(bad, place, 0), axis=0)
    if found > 0:  # rare, so that programs do not wait for each other
        tl.atomic_max(problem_ptr, found)


@triton.jit
def _summed(chosen, in_bin, fixed, SHIFT: tl.constexpr):
    """Sum 22 bits of fixed-point numbers by class and bin, in two digits; the very first digit may be 2048."""
    high, low = fixed >> (SHIFT + 11), (fixed >> SHIFT) & 2047
    if SHIFT == 0:
        high = high & 2047
    first = tl.dot(chosen, in_bin * high.to(tl.int32).to(tl.float16)[:, None]).to(tl.int64)
    return (first << 11) + tl.dot(chosen, in_bin * low.to(tl.int32).to(tl.float16)[:, None]).to(tl.int64)


@triton.jit
def _store(tables, count, hit, coarse, fine, c, r, L, R):
    inner = (c < L)[:, None] & (r < R)[None, :]
    to = tables + c[:, None] * R + r[None, :]
    tl.store(to, count.to(tl.int64), mask=inner)
    tl.store(to + L * R, hit.to(tl.int64), mask=inner)
    tl.store(to + 2 * L * R, coarse, mask=inner)
    tl.store(to + 3 * L * R, fine, mask=inner)


@triton.jit
def _add_to_shared(tables, support_ptr, winner, bins, label, fixed, inside, correct, L, R):
    """Add to tables that programs share, for more classes than a product can hold."""
    key, size = winner.to(tl.int64) * R + bins, L.to(tl.int64) * R
    tl.atomic_add(tables + key, 1, mask=inside, sem="relaxed")
    tl.atomic_add(tables + size + key, 1, mask=correct, sem="relaxed")
    tl.atomic_add(tables + 2 * size + key, fixed >> 22, mask=inside, sem="relaxed")
    tl.atomic_add(tables + 3 * size + key, fixed & 4194303, mask=inside, sem="relaxed")
    tl.atomic_add(support_ptr + label, 1, mask=inside, sem="relaxed")


@triton.jit
def _batch(
    z_ptr, label_ptr, mask_ptr, ignored_ptr, edge_ptr, tables_ptr, support_ptr, sums_ptr, problem_ptr,
    cell_count_ptr, cell_hit_ptr, cell_total_ptr, first, L, N, R, images, tiles, replicas, zb, zl, zn,
    MASKED: tl.constexpr, IGNORED: tl.constexpr, PRODUCTS: tl.constexpr, UNROLLED: tl.constexpr,
    BL: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    program, programs, region = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    c, r = tl.arange(0, BL), tl.arange(0, BR)
    count, hit = tl.zeros([BL, BR], tl.int32), tl.zeros([BL, BR], tl.int32)
    coarse, fine = tl.zeros([BL, BR], tl.int64), tl.zeros([BL, BR], tl.int64)
    support = tl.zeros([BL], tl.int32)
    nll_sum, brier_sum, entropy_sum = tl.zeros([BN], tl.float64), tl.zeros([BN], tl.float64), tl.zeros([BN], tl.float64)
    own = region * replicas + program % replicas
    tables = tables_ptr + own * 4 * L * R
    for tile in range(program, images * tiles, programs):
        image = (tile // tiles).to(tl.int64)
        n = (tile % tiles) * BN + tl.arange(0, BN)
        at = image * N + n
        label, inside, wrong = _check(label_ptr, mask_ptr, ignored_ptr, n, at, region, images, N, L, IGNORED, MASKED)
        pixels = z_ptr + image * zb + n.to(tl.int64) * zn
        confidence, winner, nll, brier, entropy, strange = _statistics(pixels, n < N, label, L, zl, UNROLLED, BN)
        finite = strange == 0.0
        if region == 0:
            _note(problem_ptr, wrong, first - at)
            _note(problem_ptr + 1, (finite == 0) & (n < N), first - at)
        inside = inside & finite
        confidence = tl.where(inside, confidence, 1.0)
        nll_sum += tl.where(inside, nll, 0.0)
        brier_sum += tl.where(inside, brier, 0.0)
        entropy_sum += tl.where(inside, entropy, 0.0)
        bins = tl.zeros([BN], tl.int32)
        for edge in range(1, R):
            bins += (confidence > tl.load(edge_ptr + edge)).to(tl.int32)
        correct = inside & (label == winner)
        fixed = (confidence * 17592186044416.0 + 0.5).to(tl.int64)  # of 2**-44
        if PRODUCTS:
            chosen = ((c[:, None] == winner[None, :]) & inside[None, :]).to(tl.float16)
            in_bin = (bins[:, None] == r[None, :]).to(tl.float16)
            count += tl.dot(chosen, in_bin).to(tl.int32)
            hit += tl.dot(chosen, in_bin * correct.to(tl.float16)[:, None]).to(tl.int32)
            coarse += _summed(chosen, in_bin, fixed, 22)
            fine += _summed(chosen, in_bin, fixed, 0)
            support += tl.sum(((c[:, None] == label[None, :]) & inside[None, :]).to(tl.int32), axis=1)
        else:
            _add_to_shared(tables, support_ptr + own * L, winner, bins, label, fixed, inside, correct, L, R)
        cell = (region * L + winner) * _CELLS + _cell_of(confidence)
        tl.atomic_add(cell_count_ptr + cell, 1, mask=inside, sem="relaxed")
        tl.atomic_add(cell_hit_ptr + cell, 1, mask=correct, sem="relaxed")
        tl.atomic_add(cell_total_ptr + cell, confidence, mask=inside, sem="relaxed")
    if PRODUCTS:
        _store(tables, count, hit, coarse, fine, c, r, L, R)
        tl.store(support_ptr + own * L + c, support.to(tl.int64), mask=c < L)
    to = sums_ptr + (region * programs + program) * 3
    tl.store(to, tl.sum(nll_sum, axis=0))
    tl.store(to + 1, tl.sum(brier_sum, axis=0))
    tl.store(to + 2, tl.sum(entropy_sum, axis=0))


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
    """Twin of `segcal.functional.counting.add_unchecked_batch`, for up to 64 bins."""
    bins, cells = len(edges) - 1, totals[5:]
    if logits.dtype not in PRECISIONS or bins > _MOST_BINS or not all(table.is_contiguous() for table in cells):
        return DECLINED  # type: ignore[return-value]
    if not logits.numel():
        return None
    z, regions = laid_flat(logits), len(totals[0])
    images, classes, pixels = z.shape
    tiles = triton.cdiv(pixels, _PIXELS)
    programs, products = min(_PROGRAMS, images * tiles), classes <= _MOST_CLASSES
    replicas = programs if products else min(programs, _REPLICAS)
    new = torch.empty if products else torch.zeros  # stored once, or added to
    tables = new((regions, replicas, 4, classes, bins), dtype=torch.int64, device=logits.device)
    support = new((regions, replicas, classes), dtype=torch.int64, device=logits.device)
    sums = torch.empty((regions, programs, 3), dtype=torch.float64, device=logits.device)
    first = (1 << 62) - (number << 40)  # see `segcal.functional.counting.place_of_problem`
    inside = labels if masks is None else masks.contiguous().view(torch.uint8)
    with on_device(logits):
        _batch[(programs, regions)](
            z, labels.contiguous(), inside, ignored, edges, tables, support, sums, problems, *cells, first,
            classes, pixels, bins, images, tiles, replicas, *z.stride(), MASKED=masks is not None,
            IGNORED=len(ignored), PRODUCTS=products, UNROLLED=_UNROLLED,
            BL=max(16, triton.next_power_of_2(classes)) if products else 16, BN=_PIXELS,
            BR=max(16, triton.next_power_of_2(bins)), num_warps=4,
        )  # fmt: skip
    count, hit, coarse, fine = tables.sum(dim=1).unbind(1)
    confidence = coarse.double() * 2.0**-22 + fine.double() * 2.0**-44
    found = (count, hit, confidence, support.sum(dim=1), sums.sum(dim=1))
    for total, value in zip(totals[:5], found, strict=True):
        total.add_(value)
    return None
