"""Fused passes over the regions of an image on the CPU: histograms and sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.cpu.compiling import BLOCK, as_numpy, cell_of, compiled, run_all, summing
from segcal.types import Array


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
    """Add the counts of four copies to the tables, and reset them."""
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
    """Twin of `segcal.functional.counting.count_cells`."""
    _count_cells(*(as_numpy(values) for values in (index, confidence, predicted, labels, count, hit, total)))


@summing
def _total(values: Array) -> float:
    """Return the sum of a few hundred values."""
    total = 0.0
    for i in range(values.shape[0]):
        total += values[i]
    return total


@compiled
def _count_labels(labels: Array, support: Array) -> None:
    """Add to the count of each label; neighbours mostly have the same label."""
    first, others = labels[0], 0
    for i in range(labels.shape[0]):
        others += int(labels[i] != first)
    support[first] += labels.shape[0] - others
    if others:
        for i in range(labels.shape[0]):
            if labels[i] != first:
                support[labels[i]] += 1


@compiled
def _measure(
    index: Array, confidence: Array, predicted: Array, labels: Array, nll: Array, brier: Array, entropy: Array,
    edges: Array, count: Array, hit: Array, total: Array, support: Array, sums: Array,
) -> None:  # fmt: skip
    """Measure one region: histograms `[E, L * R]` for E sets of edges, pixels of each true class, and sums."""
    sets, bins = edges.shape[0], edges.shape[1] - 1
    keys = count.shape[1]
    value, found = np.empty(BLOCK), np.empty(BLOCK, np.int64)
    base, one, truth = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    scores = np.empty((3, BLOCK))
    # pixels and correct pixels share a word; four copies take turns, since neighbours mostly fall into one cell
    words, parts = np.zeros((sets, 4 * keys), np.int64), np.zeros((sets, 4 * keys))
    for at in range(0, index.shape[0], BLOCK):
        n = min(BLOCK, index.shape[0] - at)
        where = index[at : at + n]
        for i in range(n):
            pixel = where[i]
            c = np.int64(predicted[pixel])
            value[i], truth[i] = confidence[pixel], labels[pixel]
            base[i], one[i] = c * bins + (i & 3) * keys, 1 + (np.int64(truth[i] == c) << 32)
            scores[0, i], scores[1, i], scores[2, i] = nll[pixel], brier[pixel], entropy[pixel]
        _count_labels(truth[:n], support)
        for k in range(3):
            sums[k] += _total(scores[k, :n])
        for s in range(sets):
            _bins_between(value, n, edges[s], found)
            words_here, parts_here = words[s], parts[s]
            for i in range(n):
                key = base[i] + found[i]
                words_here[key] += one[i]
                parts_here[key] += value[i]
        if at % (64 * BLOCK) == 63 * BLOCK:  # partial sums limit the rounding error, and keep words from overflowing
            for s in range(sets):
                _flush(words[s], parts[s], count[s], hit[s], total[s])
    for s in range(sets):
        _flush(words[s], parts[s], count[s], hit[s], total[s])


def count_regions(
    regions: Sequence[Tensor], pixels: Sequence[Tensor], edges: Tensor, num_classes: int
) -> tuple[Tensor, ...]:
    """Twin of `segcal.functional.counting.count_regions`, a region at a time on each thread."""
    many, sets, bins = edges.shape[0], edges.shape[1], edges.shape[2] - 1
    kinds = np.int64, np.int64, np.float64
    tables = [np.zeros((many, sets, num_classes * bins), kind) for kind in kinds]
    tables += [np.zeros((many, num_classes), np.int64), np.zeros((many, 3))]
    fields, between = [as_numpy(values) for values in pixels], as_numpy(edges)
    kernel: Callable[..., None] = _measure
    run_all(
        [
            partial(kernel, as_numpy(index), *fields, between[g], *(table[g] for table in tables))
            for g, index in enumerate(regions)
        ]
    )
    *histograms, support, sums = (torch.from_numpy(table) for table in tables)
    return *(table.view(many, sets, num_classes, bins) for table in histograms), support, sums
