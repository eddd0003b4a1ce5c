"""Fused passes over the regions of an image on the CPU: percentiles by counting, histograms, sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from segcal.functional.compiling import BLOCK, as_numpy, cell_of, compiled, run_all
from segcal.functional.portable import CELLS
from segcal.types import Array


@compiled
def _order_statistics(confidence: Array, index: Array, ranks: Array, found: Array) -> None:
    """Values of ascending ranks by counting: only the cells that hold a wanted rank are sorted."""
    n = index.shape[0]
    shift = 0 if n > 1 << 16 else 4  # few pixels: fewer cells to look through
    cell = np.empty(n, np.int32)
    counts = np.zeros(CELLS >> shift, np.int32)
    for i in range(n):
        cell[i] = cell_of(confidence[index[i]]) >> shift
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


@compiled
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
    where = as_numpy(index)
    return torch.from_numpy(_percentiles(as_numpy(confidence), where, np.array([0, len(where)]), bins)[0])


@compiled
def _bins_between(values: Array, n: int, edges: Array, found: Array) -> None:
    for i in range(n):
        found[i] = 0
    for q in range(1, edges.shape[0] - 1):
        edge = edges[q]
        for i in range(n):
            found[i] += values[i] > edge


@compiled
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


@compiled
def _count_between(
    edges: Array, index: Array, confidence: Array, predicted: Array, labels: Array,
    count: Array, hit: Array, total: Array,
) -> None:  # fmt: skip
    """Add to histograms `[G, L * R]` for G sets of edges at once."""
    sets, bins = edges.shape[0], edges.shape[1] - 1
    keys = count.shape[1]
    value, found = np.empty(BLOCK), np.empty(BLOCK, np.int64)
    base, one = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    # pixels and right pixels share a word, and four copies take turns, since neighbours mostly meet in one cell
    words, sums = np.zeros((sets, 4 * keys), np.int64), np.zeros((sets, 4 * keys))
    for at in range(0, index.shape[0], BLOCK):
        n = min(BLOCK, index.shape[0] - at)
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
        if at % (64 * BLOCK) == 63 * BLOCK:  # partial sums keep the rounding error small, and words from overflowing
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
    fields = [as_numpy(values) for values in (edges, index, confidence, predicted, labels)]
    _count_between(fields[0], fields[1], fields[2], fields[3], fields[4], *tables)
    count, hit, total = (torch.from_numpy(table.reshape(sets, num_classes, bins)) for table in tables)
    return count, hit, total


@compiled
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
    index = np.concatenate([as_numpy(region) for region in regions]) if many > 1 else as_numpy(regions[0])
    offsets = np.cumsum([0, *(len(region) for region in regions)])
    confidence, predicted, labels, nll, brier, entropy = (as_numpy(field) for field in pixels)
    both = np.empty((many, 2, bins + 1))
    both[:, 0] = as_numpy(edges)
    both[:, 1] = _percentiles(confidence, index, offsets, bins) if adaptive is None else as_numpy(adaptive)
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


@compiled
def _count_cells(
    index: Array, confidence: Array, predicted: Array, labels: Array, count: Array, hit: Array, total: Array
) -> None:
    for i in range(index.shape[0]):
        at = index[i]
        c, cell = predicted[at], cell_of(confidence[at])
        count[c, cell] += 1
        hit[c, cell] += int(labels[at] == c)
        total[c, cell] += confidence[at]


def count_cells(
    index: Tensor, confidence: Tensor, predicted: Tensor, labels: Tensor, count: Tensor, hit: Tensor, total: Tensor
) -> None:
    """Add pixels, right pixels and confidences by predicted class and cell to `[L, 65536]` tables, in place."""
    _count_cells(*(as_numpy(values) for values in (index, confidence, predicted, labels, count, hit, total)))


@compiled
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
    fields = [as_numpy(values) for values in (index, labels, nll, brier, entropy)]
    _sum(fields[0], fields[1], fields[2], fields[3], fields[4], support, totals)
    return torch.from_numpy(support), torch.from_numpy(totals)
