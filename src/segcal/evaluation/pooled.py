"""Metrics and reliability curves over all pixels of all cases, with bootstrap intervals over images or groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.functional import binning
from segcal.functional.binning import Evidence, Form, Histogram
from segcal.functional.catalogue import POOLED_METRICS, WITHOUT_INTERVAL, pooled_readings
from segcal.functional.fine import ece_by_bins, smooth_ece
from segcal.kernels.constants import CELLS
from segcal.types import Array

Draw = Callable[[Callable[[Array], Array], int], tuple[Array, Array]]
"""Intervals `[K]` of a statistic of weights over a number of images; see `segcal.statistics.bootstrap_intervals`."""

BINS = range(5, 101)
"""Numbers of bins for which ECE is computed."""


def empty_cells(num_classes: int) -> Histogram:
    """Return a fine histogram of zeros; numpy allocates no memory for pages that are never written to."""
    shape = (num_classes, CELLS)
    count, hit, total = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape)
    return Histogram(torch.from_numpy(count), torch.from_numpy(hit), torch.from_numpy(total))


def first_regions(evidence: Evidence, many: int) -> Evidence:
    """Return the evidence of the first `many` regions, without that of the patches."""
    top, static, adaptive = (Histogram(*(part[:many].clone() for part in histogram)) for histogram in evidence[:3])
    return Evidence(top, static, adaptive, evidence.support[:many].clone(), evidence.sums[:many].clone())


@dataclass(frozen=True)
class Figures:
    """Metrics over all pixels of a region.

    Attributes:
        values: Every metric.
        images: Number of cases.
        pixels: Number of pixels.
        drawn: Names of the metrics that have an interval.
        resample: Maps weights `[repetitions, images]` to the metrics `drawn` of each repetition.
    """

    values: Mapping[str, float]
    images: int
    pixels: int
    drawn: Sequence[str]
    resample: Callable[[Array], Array]

    @classmethod
    def mean(cls, each: Sequence[Figures]) -> Figures:
        """Return the mean over the channels of a sigmoid head, of those that have pixels; pixels are added up."""
        held = [own for own in each if own.pixels] or each[:1]
        return cls(
            {name: float(_known_mean(np.array([own.values[name] for own in held]))) for name in held[0].values},
            held[0].images,
            sum(own.pixels for own in held),
            held[0].drawn,
            lambda weights: _known_mean(np.stack([own.resample(weights) for own in held])),
        )

    def rows(self, draw: Draw) -> Iterator[tuple[str, float, float, float, int]]:
        """Yield each metric with its value, the ends of its interval and the number of pixels."""
        ends = draw(self.resample, self.images) if self.pixels else (np.full(len(self.drawn), np.nan),) * 2
        interval = dict(zip(self.drawn, zip(*ends, strict=True), strict=True))
        for name in POOLED_METRICS:
            low, high = interval.get(name, (np.nan, np.nan))
            yield name, self.values[name], float(low), float(high), self.pixels


def pooled_figures(
    kept: Sequence[Evidence], region: int, cells: Histogram, top_cells: Histogram, *, bins: int, form: Form
) -> Figures:
    """Return the metrics of a region over all cases.

    Args:
        kept: Evidence of each case.
        region: Index of the region.
        cells: Fine histogram that pooled ACE is read from.
        top_cells: Fine histogram of top confidences, which is the same unless the form is marginal.
        bins: Number of bins R.
        form: Form of SCE and ACE.
    """
    flat = [_flat(evidence, region) for evidence in kept]
    table, like = np.stack([row for row, _ in flat]), flat[0][1]
    total = _unflat(table.sum(axis=0), like)
    values = pooled_readings(total._replace(adaptive=binning.adaptive_from_cells(cells, bins=bins, form=form)), form)
    pixels = int(values.pop("pixels"))
    numbers = {**{name: float(value) for name, value in values.items()}, "ece-smooth": smooth_ece(top_cells)}
    drawn = [name for name in numbers if name not in WITHOUT_INTERVAL]

    def resample(weights: Array) -> Array:
        found = pooled_readings(_unflat(weights @ table, like), form)
        return torch.stack([found[name] for name in drawn], dim=-1).numpy()

    return Figures(numbers, len(kept), pixels, drawn, resample)


def _known_mean(values: Array) -> Array:
    """Return the mean along the first axis without NaN; NaN where there is nothing else."""
    count = (~np.isnan(values)).sum(axis=0)
    return np.asarray(np.where(count > 0, np.nansum(values, axis=0) / np.maximum(count, 1), np.nan))


def pooled_curves(
    kept: Sequence[Evidence], region: int, names: Sequence[str], *, draw: Draw
) -> Iterator[tuple[str, int, float, float, int, int, float, float, float]]:
    """Yield the reliability diagram of all pixels ("") and of those predicted as each class, bin by bin.

    Each row has label, bin, its edges, pixels, correct pixels, summed confidence and the interval of the accuracy.
    """
    fields = [torch.stack([evidence.top[f][region] for evidence in kept]).numpy() for f in range(3)]
    # all pixels first, then by class: [cases, 1 + L, R]
    count, hit, confidence = (np.concatenate([field.sum(axis=1, keepdims=True), field], axis=1) for field in fields)
    shape, cases = count.shape[1:], len(kept)
    held = np.flatnonzero(count.sum(axis=0))
    own_hit, own_count = (field.reshape(cases, -1)[:, held].astype(np.float64) for field in (hit, count))

    def accuracy(weights: Array) -> Array:
        drawn = weights @ own_count
        return np.asarray(np.divide(weights @ own_hit, drawn, out=np.full(drawn.shape, np.nan), where=drawn > 0))

    low, high = np.full(shape, np.nan), np.full(shape, np.nan)
    low.flat[held], high.flat[held] = draw(accuracy, cases)
    sums = [field.sum(axis=0) for field in (count, hit, confidence)]
    bins = shape[1]
    for k, name in enumerate(("", *names)):
        for j in range(bins):
            numbers = (*(total[k, j].item() for total in sums), float(low[k, j]), float(high[k, j]))
            yield (name, j, j / bins, (j + 1) / bins, *numbers)


def ece_of_bins(top_cells: Histogram) -> Iterator[tuple[int, float]]:
    """Yield ECE for each number of bins in `BINS`."""
    yield from zip(BINS, ece_by_bins(top_cells, BINS).tolist(), strict=True)


def _flat(evidence: Evidence, region: int) -> tuple[Array, list[Tensor]]:
    """Return the evidence of one region as a vector that can be added, and its parts for their shapes and types."""
    parts = [*evidence.top, *evidence.static, *evidence.adaptive, evidence.support, evidence.sums]
    own = [part[region] for part in parts]
    return np.concatenate([part.double().numpy().ravel() for part in own]), own


def _unflat(vectors: Array, like: Sequence[Any]) -> Evidence:
    """Invert `_flat` for one vector or many; counts are exact in float64 up to 2**53."""
    ends = np.cumsum([part.numel() for part in like])
    pieces = np.split(vectors, ends[:-1], axis=-1)
    parts = [
        torch.from_numpy(piece.reshape(*vectors.shape[:-1], *part.shape)).to(part.dtype)
        for piece, part in zip(pieces, like, strict=True)
    ]
    return Evidence(Histogram(*parts[0:3]), Histogram(*parts[3:6]), Histogram(*parts[6:9]), parts[9], parts[10])
