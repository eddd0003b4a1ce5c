"""Fused passes over pixels on the CPU, compiled by numba; `portable` holds the same functions for every other device.

Everything is computed in float64 and counted in int64. A kernel works on a range of pixels and releases the GIL, so
that a thread pool of PyTorch's size runs it; no parallel runtime of numba's own is started beside PyTorch's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, TypeVar, cast

import numba
import numpy as np
import torch
from torch import Tensor

from segcal.types import Array

F = TypeVar("F", bound=Callable[..., Any])

_BLOCK = 256  # pixels whose intermediate results stay in the first-level cache
_CELLS = 1 << 16
_LOW_OCTAVES = 12  # of 1,024 cells, for confidences below 1/2; the other 52 are for 1 - confidence


def _compiled(function: F) -> F:
    """Compile to machine code on first use and keep it on disk; contraction to fused multiply-add is allowed."""
    return cast(F, numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})(function))


# --------------------------------------------------------------------------------------------------------------------
# elementary functions that the compiler can vectorise (libm's cannot be)


@_compiled
def _exp(x: float) -> float:
    """e**x for x <= 0, to 2 units in the last place; below -700 the value at -700, which no sum notices."""
    x = max(x, -700.0)
    shifted = x * 1.4426950408889634 + 6755399441055744.0  # 1.5 * 2**52: rounds to an integer held in the low bits
    k = shifted - 6755399441055744.0
    r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    p = 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    bits = np.float64(p).view(np.int64) + (np.float64(shifted).view(np.int64) << 52)
    return np.int64(bits).view(np.float64)


@_compiled
def _log(x: float) -> float:
    """Natural logarithm for x >= 1, to an absolute error of about 1e-16 times the result's magnitude."""
    bits = np.float64(x).view(np.int64)
    high = (bits - 0x3FE6A09E667F3BCD) >> 52  # exponent such that the mantissa lies in [sqrt(1/2), sqrt(2))
    f = np.int64(bits - (high << 52)).view(np.float64)
    t = (f - 1.0) / (f + 1.0)
    u = t * t
    p = 1.0 / 21.0
    p = p * u + 1.0 / 19.0
    p = p * u + 1.0 / 17.0
    p = p * u + 1.0 / 15.0
    p = p * u + 1.0 / 13.0
    p = p * u + 1.0 / 11.0
    p = p * u + 1.0 / 9.0
    p = p * u + 1.0 / 7.0
    p = p * u + 1.0 / 5.0
    p = p * u + 1.0 / 3.0
    p = p * u + 1.0
    return float(high) * 0.6931471805599453 + 2.0 * t * p


@_compiled
def _cell(confidence: float) -> int:
    """Which of the 65,536 cells a confidence falls into; see `cells`. Without branches, for the vector units."""
    rest = 1.0 - confidence
    low = (np.float64(confidence).view(np.int64) >> 42) - ((1022 - _LOW_OCTAVES) << 10)
    high = _CELLS - 1 - (np.float64(rest).view(np.int64) >> 42) + ((958 + _LOW_OCTAVES) << 10)
    return max(low, 0) if confidence < 0.5 else min(high, _CELLS - 1)  # type: ignore[return-value]


# --------------------------------------------------------------------------------------------------------------------
# per pixel


@_compiled
def _largest(logits: Array, at: int, n: int, top: Array, winner: Array) -> None:
    """The largest logit and the first class that has it, of `n` pixels from `at` on."""
    # slices of one row, here and below: with two indices the compiler does not use the vector units
    classes = logits.shape[0]
    first = logits[0, at : at + n]
    for i in range(n):
        top[i] = first[i]
        winner[i] = 0
    for c in range(1, classes - 1, 2):  # two classes at a time need half the loads and stores
        one, two = logits[c, at : at + n], logits[c + 1, at : at + n]
        for i in range(n):
            higher = two[i] > one[i]
            value = two[i] if higher else one[i]
            wins = value > top[i]
            winner[i] = (c + 1 if higher else c) if wins else winner[i]
            top[i] = value if wins else top[i]
    if classes > 1 and classes % 2 == 0:
        last = logits[classes - 1, at : at + n]
        for i in range(n):
            wins = last[i] > top[i]
            winner[i] = classes - 1 if wins else winner[i]
            top[i] = last[i] if wins else top[i]


@_compiled
def _describe(
    logits: Array,
    labels: Array,
    confidence: Array,
    predicted: Array,
    nll: Array,
    brier: Array,
    entropy: Array,
    start: int,
    stop: int,
) -> None:
    classes = logits.shape[0]
    top = np.empty(_BLOCK, logits.dtype)
    winner = np.empty(_BLOCK, np.int32)
    total, squares, weighted, truth = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    for at in range(start, stop, _BLOCK):
        n = min(_BLOCK, stop - at)
        _largest(logits, at, n, top, winner)
        total[:] = 0.0
        squares[:] = 0.0
        weighted[:] = 0.0
        for c in range(0, classes - 1, 2):  # two classes at a time need half the loads and stores
            one, two = logits[c, at : at + n], logits[c + 1, at : at + n]
            for i in range(n):
                largest = np.float64(top[i])
                a, b = np.float64(one[i]) - largest, np.float64(two[i]) - largest
                e, f = _exp(a), _exp(b)
                total[i] += e + f
                squares[i] += e * e + f * f
                weighted[i] += e * a + f * b
        if classes % 2:
            one = logits[classes - 1, at : at + n]
            for i in range(n):
                a = np.float64(one[i]) - np.float64(top[i])
                e = _exp(a)
                total[i] += e
                squares[i] += e * e
                weighted[i] += e * a
        for i in range(n):
            truth[i] = np.float64(logits[max(labels[at + i], 0), at + i]) - np.float64(top[i])
        out = confidence[at : at + n], nll[at : at + n], brier[at : at + n], entropy[at : at + n]
        classes_out = predicted[at : at + n]
        for i in range(n):
            inverse = 1.0 / total[i]
            log_total = _log(total[i])
            out[0][i] = inverse
            out[1][i] = log_total - truth[i]
            out[2][i] = squares[i] * inverse * inverse - 2.0 * _exp(truth[i]) * inverse + 1.0
            out[3][i] = log_total - weighted[i] * inverse
            classes_out[i] = winner[i]


def describe(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Confidence, predicted class, NLL, Brier score and entropy of `[L, N]` logits, each `[N]`."""
    z = _as_numpy(logits)
    n = z.shape[1]
    confidence, nll, brier, entropy = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    predicted = np.empty(n, np.int32)
    _over_pixels(_describe, n, z, _as_numpy(labels), confidence, predicted, nll, brier, entropy)
    first, *rest = (torch.from_numpy(values) for values in (confidence, predicted, nll, brier, entropy))
    return (first, rest[0], rest[1], rest[2], rest[3])


# --------------------------------------------------------------------------------------------------------------------
# per region


@_compiled
def _order_statistics(confidence: Array, index: Array, ranks: Array, found: Array) -> None:
    """Values of ascending ranks by counting: only the cells that hold a wanted rank are sorted."""
    n = index.shape[0]
    shift = 0 if n > 1 << 16 else 4  # few pixels: fewer cells to look through
    cell = np.empty(n, np.int32)
    counts = np.zeros(_CELLS >> shift, np.int32)
    for i in range(n):
        cell[i] = _cell(confidence[index[i]]) >> shift
    for i in range(n):
        counts[cell[i]] += 1
    wanted = np.zeros(counts.shape[0], np.bool_)
    places = np.empty(ranks.shape[0], np.int64)  # position of each rank among the values of the wanted cells
    passed, kept, q = 0, 0, 0
    for c in range(counts.shape[0]):
        first = q
        while q < ranks.shape[0] and ranks[q] < passed + counts[c]:
            places[q] = kept + ranks[q] - passed
            q += 1
        if q > first:
            wanted[c] = True
            kept += counts[c]
        passed += counts[c]
    values = np.empty(kept)
    k = 0
    for i in range(n):
        if wanted[cell[i]]:
            values[k] = confidence[index[i]]
            k += 1
    values.sort()
    for q in range(ranks.shape[0]):
        found[q] = values[places[q]]


@_compiled
def _neighbours(
    confidence: Array, index: Array, offsets: Array, ranks: Array, found: Array, first: int, last: int
) -> None:
    """The values of the wanted ranks in each region; ranks and values are `[G, K]`, and ranks ascend."""
    for g in range(first, last):
        if offsets[g] < offsets[g + 1]:
            _order_statistics(confidence, index[offsets[g] : offsets[g + 1]], ranks[g], found[g])


def _percentiles(confidence: Array, index: Array, offsets: Array, bins: int) -> Array:
    """`np.percentile` in each region at `bins + 1` equally spaced shares, to the last bit; NaN where it is empty.

    The values on either side of each percentile are found by counting; numpy interpolates, because the compiler would
    fuse its multiplications and additions.
    """
    n = np.diff(offsets)[:, np.newaxis]
    position = (n - 1) * (np.linspace(0, 100, bins + 1) / 100)
    lower = np.floor(position).astype(np.int64)
    wanted = np.concatenate([lower, np.minimum(lower + 1, n - 1)], axis=1)
    order = np.argsort(wanted, axis=1, kind="stable")
    ascending = np.full(wanted.shape, np.nan)
    ranks = np.take_along_axis(wanted, order, axis=1)
    parts = _even_parts(offsets, torch.get_num_threads())
    run_all([partial(_neighbours, confidence, index, offsets, ranks, ascending, *part) for part in parts])
    values = np.empty_like(ascending)
    np.put_along_axis(values, order, ascending, axis=1)
    low, high, share = values[:, : bins + 1], values[:, bins + 1 :], position - lower
    return np.where(share >= 0.5, high - (high - low) * (1 - share), low + (high - low) * share)


def quantile_edges(confidence: Tensor, index: Tensor, bins: int) -> Tensor:
    """`np.percentile` of the confidences at `index` for `bins + 1` equally spaced shares; NaN where there is none."""
    where = _as_numpy(index)
    return torch.from_numpy(_percentiles(_as_numpy(confidence), where, np.array([0, len(where)]), bins)[0])


@_compiled
def _bins_between(values: Array, n: int, edges: Array, found: Array) -> None:
    for i in range(n):
        found[i] = 0
    for q in range(1, edges.shape[0] - 1):
        edge = edges[q]
        for i in range(n):
            found[i] += values[i] > edge


@_compiled
def _flush(words: Array, sums: Array, count: Array, hit: Array, total: Array) -> None:
    """Add what was counted in four copies to the tables, and start anew."""
    keys = words.shape[0] // 4
    for key in range(keys):
        for copy in range(4):
            word = words[copy * keys + key]
            count[key] += word & 0xFFFFFFFF
            hit[key] += word >> 32
            total[key] += sums[copy * keys + key]
    words[:] = 0
    sums[:] = 0.0


@_compiled
def _count_between(
    edges: Array, index: Array, confidence: Array, predicted: Array, labels: Array,
    count: Array, hit: Array, total: Array,
) -> None:  # fmt: skip
    """Add to histograms `[G, L * R]` for G sets of edges at once."""
    sets, bins = edges.shape[0], edges.shape[1] - 1
    keys = count.shape[1]
    value, found = np.empty(_BLOCK), np.empty(_BLOCK, np.int64)
    base, one = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    # pixels and right pixels share a word, and four copies take turns, since neighbours mostly meet in one cell
    words, sums = np.zeros((sets, 4 * keys), np.int64), np.zeros((sets, 4 * keys))
    for at in range(0, index.shape[0], _BLOCK):
        n = min(_BLOCK, index.shape[0] - at)
        where = index[at : at + n]
        for i in range(n):
            pixel = where[i]
            c = predicted[pixel]
            value[i] = confidence[pixel]
            base[i] = c * bins + (i & 3) * keys
            one[i] = 1 + (np.int64(labels[pixel] == c) << 32)
        for s in range(sets):
            _bins_between(value, n, edges[s], found)
            words_here, sums_here = words[s], sums[s]
            for i in range(n):
                key = base[i] + found[i]
                words_here[key] += one[i]
                sums_here[key] += value[i]
        if at % (64 * _BLOCK) == 63 * _BLOCK:  # partial sums keep the rounding error small, and words from overflowing
            for s in range(sets):
                _flush(words[s], sums[s], count[s], hit[s], total[s])
    for s in range(sets):
        _flush(words[s], sums[s], count[s], hit[s], total[s])


def count_between(
    edges: Tensor, index: Tensor, confidence: Tensor, predicted: Tensor, labels: Tensor, num_classes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels, right pixels and summed confidence `[G, L, R]` by predicted class and interval, for G sets of edges.

    Intervals are open on the left and closed on the right; what lies outside the edges goes to the nearest interval.
    """
    sets, bins = edges.shape[0], edges.shape[1] - 1
    shape = (sets, num_classes * bins)
    tables = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape)
    fields = [_as_numpy(values) for values in (edges, index, confidence, predicted, labels)]
    _count_between(fields[0], fields[1], fields[2], fields[3], fields[4], *tables)
    count, hit, total = (torch.from_numpy(table.reshape(sets, num_classes, bins)) for table in tables)
    return count, hit, total


@_compiled
def _measure(
    index: Array, offsets: Array, confidence: Array, predicted: Array, labels: Array, nll: Array, brier: Array,
    entropy: Array, edges: Array, count: Array, hit: Array, total: Array, support: Array, sums: Array,
    start: int, stop: int,
) -> None:  # fmt: skip
    """Count what lies between `start` and `stop` of the regions laid end to end."""
    for g in range(offsets.shape[0] - 1):
        first, last = max(offsets[g], start), min(offsets[g + 1], stop)
        if first < last:
            part = index[first:last]
            _count_between(edges[g], part, confidence, predicted, labels, count[g], hit[g], total[g])
            _sum(part, labels, nll, brier, entropy, support[g], sums[g])


def measure(
    regions: Sequence[Tensor], pixels: Sequence[Tensor], edges: Tensor, adaptive: Tensor | None, num_classes: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Everything that is kept of each of G regions, in one call for each thread.

    Args:
        regions: Positions of the pixels of each.
        pixels: Confidence, predicted class, label, NLL, Brier score and entropy `[N]`.
        edges: Of the equal bins.
        adaptive: Of the equal-mass bins; by default the percentiles within each region.
        num_classes: L.

    Returns:
        Pixels, right pixels and summed confidence `[G, 2, L, R]` in equal and equal-mass bins, pixels of each true
        class `[G, L]` and the sums of NLL, Brier score and entropy `[G, 3]`.
    """
    many, bins = len(regions), edges.shape[0] - 1
    index = np.concatenate([_as_numpy(region) for region in regions]) if many > 1 else _as_numpy(regions[0])
    offsets = np.cumsum([0, *(len(region) for region in regions)])
    confidence, predicted, labels, nll, brier, entropy = (_as_numpy(field) for field in pixels)
    both = np.empty((many, 2, bins + 1))
    both[:, 0] = _as_numpy(edges)
    both[:, 1] = _percentiles(confidence, index, offsets, bins) if adaptive is None else _as_numpy(adaptive)
    threads = torch.get_num_threads()
    fields = (index, offsets, confidence, predicted, labels, nll, brier, entropy, both)
    tables = [_empty_tables(many, num_classes, bins) for _ in range(threads)]
    cuts = [len(index) * k // threads for k in range(threads + 1)]
    run_all([partial(_measure, *fields, *own, *cut) for own, cut in zip(tables, pairwise(cuts), strict=True)])
    count, hit, total, support, sums = (
        torch.from_numpy(sum(parts[1:], parts[0])) for parts in zip(*tables, strict=True)
    )
    shape = (many, 2, num_classes, bins)
    return count.view(shape), hit.view(shape), total.view(shape), support, sums


def _empty_tables(regions: int, num_classes: int, bins: int) -> tuple[Array, Array, Array, Array, Array]:
    shape = (regions, 2, num_classes * bins)
    counts = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape)
    return (*counts, np.zeros((regions, num_classes), np.int64), np.zeros((regions, 3)))


def _even_parts(offsets: Array, parts: int) -> list[tuple[int, int]]:
    """Consecutive regions in at most `parts` groups of about equally many pixels."""
    wanted = offsets[-1] * np.arange(1, parts) / parts
    middle = (offsets[:-1] + offsets[1:]) / 2
    cuts = sorted({0, *(int(cut) for cut in np.searchsorted(middle, wanted)), len(offsets) - 1})
    return list(pairwise(cuts))


@_compiled
def _count_cells(
    index: Array, confidence: Array, predicted: Array, labels: Array, count: Array, hit: Array, total: Array
) -> None:
    for i in range(index.shape[0]):
        at = index[i]
        c, cell = predicted[at], _cell(confidence[at])
        count[c, cell] += 1
        hit[c, cell] += int(labels[at] == c)
        total[c, cell] += confidence[at]


def count_cells(
    index: Tensor, confidence: Tensor, predicted: Tensor, labels: Tensor, count: Tensor, hit: Tensor, total: Tensor
) -> None:
    """Add pixels, right pixels and confidences by predicted class and cell to `[L, 65536]` tables, in place."""
    _count_cells(*(_as_numpy(values) for values in (index, confidence, predicted, labels, count, hit, total)))


@_compiled
def _sum(index: Array, labels: Array, nll: Array, brier: Array, entropy: Array, support: Array, sums: Array) -> None:
    for start in range(0, index.shape[0], 4096):  # partial sums keep the rounding error small
        a, b, c = 0.0, 0.0, 0.0
        for i in range(start, min(start + 4096, index.shape[0])):
            at = index[i]
            support[labels[at]] += 1
            a += nll[at]
            b += brier[at]
            c += entropy[at]
        sums[0] += a
        sums[1] += b
        sums[2] += c


def sums(
    index: Tensor, labels: Tensor, nll: Tensor, brier: Tensor, entropy: Tensor, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Pixels of each true class, and the sums of NLL, Brier score and entropy."""
    support, totals = np.zeros(num_classes, np.int64), np.zeros(3)
    fields = [_as_numpy(values) for values in (index, labels, nll, brier, entropy)]
    _sum(fields[0], fields[1], fields[2], fields[3], fields[4], support, totals)
    return torch.from_numpy(support), torch.from_numpy(totals)


# --------------------------------------------------------------------------------------------------------------------
# derivatives of the likelihood in the inverse temperature (proof of Theorem 1)


@_compiled
def _likelihood(logits: Array, labels: Array, alpha: float, partial: Array, start: int, stop: int) -> None:
    classes = logits.shape[0]
    top = np.empty(_BLOCK, logits.dtype)
    winner = np.empty(_BLOCK, np.int32)
    total, first, second, mean = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    for at in range(start, stop, _BLOCK):
        n = min(_BLOCK, stop - at)
        _largest(logits, at, n, top, winner)
        total[:] = 0.0
        first[:] = 0.0
        second[:] = 0.0
        mean[:] = 0.0
        for c in range(classes):
            row = logits[c, at : at + n]
            for i in range(n):
                below = np.float64(row[i]) - np.float64(top[i])
                e = _exp(alpha * below)
                total[i] += e
                first[i] += e * below
                second[i] += e * below * below
                mean[i] += below
        for i in range(n):  # in vectors: mean logit, its variance, and the logarithm of the sum, in place
            inverse = 1.0 / total[i]
            first[i] *= inverse
            second[i] = max(second[i] * inverse - first[i] * first[i], 0.0)
            total[i] = _log(total[i])
            mean[i] /= classes
        pixels, slope, curvature, nll, at_zero, at_infinity = 0, 0.0, 0.0, 0.0, 0.0, 0.0
        for i in range(n):
            label = labels[at + i]
            if label < 0:
                continue
            truth = np.float64(logits[label, at + i]) - np.float64(top[i])
            pixels += 1
            slope += first[i] - truth
            curvature += second[i]
            nll += total[i] - alpha * truth
            at_zero += mean[i] - truth
            at_infinity -= truth
        block = at // _BLOCK
        partial[block, 0] = pixels
        partial[block, 1] = nll
        partial[block, 2] = slope
        partial[block, 3] = curvature
        partial[block, 4] = at_zero
        partial[block, 5] = at_infinity


def likelihood(logits: Tensor, labels: Tensor, alpha: float) -> Tensor:
    """Pixels, NLL, its slope and curvature in the inverse temperature at `alpha`, and its slope at 0 and at infinity.

    Sums over the labelled pixels of `[L, N]` logits: Float64[6].
    """
    z = _as_numpy(logits)
    n = z.shape[1]
    partial = np.zeros((-(-n // _BLOCK), 6))
    _over_pixels(_likelihood, n, z, _as_numpy(labels), float(alpha), partial)
    return torch.from_numpy(partial.sum(axis=0))  # numpy sums pairwise


# --------------------------------------------------------------------------------------------------------------------
# checks: numpy and numba on one thread, because PyTorch's threads spin for milliseconds after each small operation,
# on cores that the kernels need


def sum_is_finite(values: Tensor) -> bool:
    """Whether the sum of all values is finite, which it is not if one of them is not."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(_as_numpy(values).sum()))


@_compiled
def _relabel(labels: Array, ignored: Array, num_classes: int, result: Array) -> int:
    """Fill `result`; how many labels are neither class nor ignored. In plain loops, which the vector units can run."""
    foreign = 0
    for i in range(labels.shape[0]):
        label = np.int64(labels[i])
        result[i] = label
        foreign += int((label < 0) | (label >= num_classes))
    for k in range(ignored.shape[0]):
        found = 0
        for i in range(labels.shape[0]):
            same = np.int64(labels[i]) == ignored[k]
            result[i] = -1 if same else result[i]
            found += int(same)
        if ignored[k] < 0 or ignored[k] >= num_classes:
            foreign -= found
    return foreign


def relabel(labels: Tensor, ignored: Sequence[int], num_classes: int) -> tuple[Tensor, int]:
    """Labels as int64 with -1 for ignored ones, and the position of the first that is neither class nor ignored."""
    values = _as_numpy(labels)
    result = np.empty(values.shape, np.int64)
    unique = np.unique(np.array(ignored, np.int64))
    if not _relabel(values.reshape(-1), unique, num_classes, result.reshape(-1)):
        return torch.from_numpy(result), -1
    wide = values.reshape(-1).astype(np.int64)
    wrong = ((wide < 0) | (wide >= num_classes)) & ~np.isin(wide, unique)
    return torch.from_numpy(result), int(wrong.argmax())


# --------------------------------------------------------------------------------------------------------------------
# geometry


@_compiled
def _mark_changes(labels: Array, near: Array, step: int, width: int) -> None:
    """Mark, in rows of pixels, both of any two whose labels differ and that are up to `width` times `step` apart."""
    for row in range(labels.shape[0]):
        line, marks = labels[row], near[row]
        for offset in range(step, min(width * step, line.shape[0] - 1) + 1, step):
            here, there, first, second = line[:-offset], line[offset:], marks[:-offset], marks[offset:]
            for i in range(here.shape[0]):
                first[i] |= np.uint8(here[i] != there[i])
            for i in range(here.shape[0]):
                second[i] |= np.uint8(here[i] != there[i])


def differs_along_axes(labels: Tensor, width: int) -> Tensor:
    """Pixels of `[B, *S]` labels that differ from a neighbour up to `width` steps away along an axis of `*S`."""
    values = _as_numpy(labels)
    if values.size and values.min() >= -(1 << 15) and values.max() < 1 << 15:
        values = values.astype(np.int16)  # four times as many to a vector
    near = np.zeros(values.shape, np.uint8)
    for axis in range(1, values.ndim if values.size else 1):
        step = math.prod(values.shape[axis + 1 :])
        rows = (-1, values.shape[axis] * step)
        _mark_changes(values.reshape(rows), near.reshape(rows), step, width)
    return torch.from_numpy(near.view(np.bool_))


# --------------------------------------------------------------------------------------------------------------------
# threads


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """One pool for each process (a forked child does not inherit threads) and thread count."""
    return ThreadPoolExecutor(threads, thread_name_prefix="segcal")


def run_all(tasks: list[Callable[[], Any]]) -> list[Any]:
    """Run tasks on the thread pool and return their results in order."""
    threads = torch.get_num_threads()
    if threads == 1 or len(tasks) <= 1:
        return [task() for task in tasks]
    futures = [_pool(os.getpid(), threads).submit(task) for task in tasks[1:]]
    return [tasks[0](), *(future.result() for future in futures)]


def _over_pixels(kernel: Callable[..., None], n: int, *arguments: Any) -> None:
    """Run `kernel(*arguments, start, stop)` over ranges of pixels, one for each thread, on whole blocks."""
    parts = min(torch.get_num_threads(), max(1, n // (8 * _BLOCK)))
    size = max(-(-n // (parts * _BLOCK)) * _BLOCK, 1)
    ranges = [(start, min(start + size, n)) for start in range(0, n, size)]
    run_all([partial(kernel, *arguments, start, stop) for start, stop in ranges])


def _as_numpy(values: Tensor) -> Array:
    """Without a copy where memory order and precision allow."""
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    return values.detach().contiguous().numpy()
