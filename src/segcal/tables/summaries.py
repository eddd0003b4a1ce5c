"""Summaries over cases with bootstrap intervals: all pixels together, means over images, values of paired tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from segcal.evidence import Evidence, Form, Histogram, read, readings
from segcal.evidence.readings import smooth_ece
from segcal.evidence.statistic import merge_classes
from segcal.functional.catalogue import POOLED_METRICS, WITHOUT_INTERVAL
from segcal.statistics import Drawing, clusters_of, weighted_ratio, weighted_sums
from segcal.types import Array

_DRAWN = [name for name in POOLED_METRICS if name not in WITHOUT_INTERVAL]
"""Metrics that have an interval."""


class RegionTotals(NamedTuple):
    """The evidence of one region over all cases.

    Attributes:
        cases: Evidence of each case: `[cases, E]` (`Evidence.to_vectors`).
        cells: Fine histogram of top confidences.
        class_cells: Fine histogram of the probability of every class, in the form `marginal`.
    """

    cases: Array
    cells: Histogram
    class_cells: Histogram | None

    def each(self, weights: Array | None = None) -> Evidence:
        """Return the evidence of each case or, of weights `[repetitions, cases]`, of each repetition."""
        vectors = self.cases if weights is None else weighted_sums(weights, self.cases)
        marginal = self.class_cells is not None
        return Evidence.from_vectors(torch.from_numpy(vectors), len(self.cells.pixels), marginal=marginal)

    def total(self) -> Evidence:
        """Return the evidence of all cases together."""
        whole = self._replace(cases=self.cases.sum(axis=0)).each()
        return replace(whole, cells=self.class_cells or self.cells)

    def values(self, form: Form) -> dict[str, float]:
        """Return every metric over all cases, and their pixels."""
        found = read(self.total(), [name for name in POOLED_METRICS if name != "ece-smooth"], form)
        return {**{name: float(value) for name, value in found.items()}, "ece-smooth": smooth_ece(self.cells)}

    def resampled(self, weights: Array, form: Form) -> Array:
        """Return the metrics `_DRAWN` of each repetition."""
        found = read(self.each(weights), _DRAWN, form)
        return torch.stack([found[name] for name in _DRAWN], dim=-1).numpy()

    def noise(self, weights: Array, form: Form) -> Array:
        """Return the calibration errors of each repetition around the gaps of all cases, which noise alone causes.

        They are NaN for the metrics that are no calibration errors.
        """
        own, total = self.each(weights), self.total()
        merged = _centred(merge_classes(own.top), merge_classes(total.top))
        static = _centred(own.static or own.top, total.static or total.top)
        found = {"ece": readings.ece(merged), "mce": readings.mce(merged), "sce": readings.sce(static, form)}
        unknown = torch.full_like(found["ece"], torch.nan)
        return torch.stack([found.get(name, unknown) for name in _DRAWN], dim=-1).numpy()


def pooled_metrics(
    heads: Sequence[RegionTotals], form: Form, drawing: Drawing
) -> Iterator[tuple[str, float, float, float, int, int]]:
    """Yield each metric of a region with value, ends of its interval, number of cases and of pixels.

    Of several sigmoid channels it is the mean over those that have pixels; pixels are added up.
    """
    values = [own.values(form) for own in heads]
    pixels = int(sum(own["pixels"] for own in values))
    interval = dict.fromkeys(POOLED_METRICS, (np.nan, np.nan))
    if pixels:
        low, high = drawing.intervals(
            lambda weights: _known_mean([own.resampled(weights, form) for own in heads]),
            lambda weights: _known_mean([own.noise(weights, form) for own in heads]),
        )
        interval |= dict(zip(_DRAWN, zip(low.tolist(), high.tolist(), strict=True), strict=True))
    for name in POOLED_METRICS:
        yield name, float(_known_mean([own[name] for own in values])), *interval[name], len(heads[0].cases), pixels


def _centred(drawn: Histogram, whole: Histogram) -> Histogram:
    """Return a resampled histogram whose gaps are those to the gaps of all images."""
    gap = (whole.hit - whole.confidence) / whole.pixels.clamp(min=1)
    return Histogram(
        drawn.pixels, drawn.hit - drawn.confidence - drawn.pixels * gap, torch.zeros_like(drawn.confidence)
    )


def _known_mean(values: Sequence[Array | float]) -> Array:
    """Return the mean without NaN; NaN where there is nothing else."""
    return torch.from_numpy(np.stack(values)).nanmean(dim=0).numpy()


def pooled_curves(
    top: Histogram, names: Sequence[str], *, drawing: Drawing
) -> Iterator[tuple[str, int, float, float, int, int, float, float, float]]:
    """Yield the reliability diagram of all pixels ("") and of those predicted as each class, bin by bin.

    `top` holds the top confidences of each case `[cases, L, R]`. Each row has label, bin, its edges, pixels, correct
    pixels, summed confidence and the interval of the accuracy.
    """
    fields = [field.numpy() for field in top]
    # all pixels first, then by class: [cases, 1 + L, R]
    count, hit, confidence = (np.concatenate([field.sum(axis=1, keepdims=True), field], axis=1) for field in fields)
    shape, cases = count.shape[1:], len(count)
    held = np.flatnonzero(count.sum(axis=0))
    own_hit, own_count = (field.reshape(cases, -1)[:, held].astype(np.float64) for field in (hit, count))

    accuracy = partial(weighted_ratio, totals=own_hit, counts=own_count)
    low, high = np.full(shape, np.nan), np.full(shape, np.nan)
    low.flat[held], high.flat[held] = drawing.intervals(accuracy)
    sums = [field.sum(axis=0) for field in (count, hit, confidence)]
    bins = shape[1]
    for k, name in enumerate(("", *names)):
        for j in range(bins):
            numbers = (*(total[k, j].item() for total in sums), float(low[k, j]), float(high[k, j]))
            yield (name, j, j / bins, (j + 1) / bins, *numbers)


def averaged_rows(frame: pd.DataFrame, patches: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that means are taken over: patches for Local-Avg, as in the paper's table, else images."""
    images = frame[frame.region != "local-avg"]
    return pd.concat([images, patches.assign(region="local-avg")]) if len(patches) else images


def summary(frame: pd.DataFrame, patches: pd.DataFrame, drawing: Drawing) -> pd.DataFrame:
    """Return mean, standard deviation and interval: columns `method region metric mean std low high count`.

    As in the paper's table, Local-Avg is over patches (and `count` counts them), every other region over images; the
    bootstrap resamples images, with all their patches.
    """
    rows = averaged_rows(frame, patches).dropna(subset="value")
    keys = frame[["method", "region", "metric"]].drop_duplicates()
    index = pd.MultiIndex.from_frame(keys)

    def by_image(values: pd.Series, how: str) -> Array:
        table = values.groupby([rows["case"], rows.method, rows.region, rows.metric]).agg(how).unstack(0)
        return table.reindex(index=index, columns=list(drawing.cases)).fillna(0).to_numpy(np.float64).T

    total, count = by_image(rows.value, "sum"), by_image(rows.value, "count")
    mean = partial(weighted_ratio, totals=total, counts=count)
    means = mean(np.ones((1, len(drawing.cases))))[0]
    by_key = rows.groupby(["method", "region", "metric"]).value
    spread = by_key.std(ddof=0).reindex(index).to_numpy()
    low, high = drawing.intervals(mean)
    counts = count.sum(axis=0).astype(np.int64)
    return keys.assign(mean=means, std=spread, low=low, high=high, count=counts).reset_index(drop=True)


def volume_bias(volumes: pd.DataFrame, drawing: Drawing) -> pd.DataFrame:
    """Return the bias of expected volumes over all cases: columns `method label predicted true bias low high`.

    `bias` is predicted / true - 1: 0.1 where the expected volume of a class is 10 % too large.
    """
    keys = volumes[["method", "label"]].drop_duplicates()
    index = pd.MultiIndex.from_frame(keys)

    def by_image(column: str) -> Array:
        table = volumes.pivot(index=["method", "label"], columns="case", values=column)
        return table.reindex(index=index, columns=list(drawing.cases)).to_numpy(np.float64).T

    predicted, true = by_image("predicted"), by_image("true")

    def bias(weights: Array) -> Array:
        return weighted_ratio(weights, predicted, true) - 1

    low, high = drawing.intervals(bias)
    off = bias(np.ones((1, len(drawing.cases))))[0]
    found = keys.assign(predicted=predicted.sum(axis=0), true=true.sum(axis=0).astype(np.int64))
    return found.assign(bias=off, low=low, high=high).reset_index(drop=True)


def image_means(frame: pd.DataFrame, drawing: Drawing) -> dict[tuple[str, str, str], Array]:
    """Return one value per cluster of images by (method, metric, region), in order, for paired tests.

    Images of one group are not independent, so they count once, with their mean.
    """
    cluster = pd.Series(clusters_of(drawing.groups), index=list(drawing.cases))
    rows = frame.assign(cluster=frame["case"].map(cluster))
    means = rows.groupby(["method", "metric", "region", "cluster"]).value.mean().unstack("cluster")
    return dict(zip(means.index.to_list(), means.to_numpy(np.float64), strict=True))
