"""Summaries over cases with bootstrap intervals: all pixels together, means over images, values of paired tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd
import torch

from segcal.evidence import Evidence, Form, Histogram, read, readings
from segcal.evidence.readings import smooth_ece
from segcal.evidence.statistic import merge_classes
from segcal.functional.catalogue import POOLED_METRICS, WITHOUT_INTERVAL
from segcal.statistics import Drawing, clusters_of, weighted_ratio, weighted_sums
from segcal.types import Array


@dataclass(frozen=True)
class PooledMetrics:
    """Metrics over all pixels of a region.

    Attributes:
        values: Every metric.
        images: Number of cases.
        pixels: Number of pixels.
        drawn: Names of the metrics that have an interval.
        resample: Maps weights `[repetitions, images]` to the metrics `drawn` of each repetition.
        noise: Maps weights to the calibration errors of each repetition around the gaps of all images: errors that
            noise alone would cause; NaN for other metrics.
    """

    values: Mapping[str, float]
    images: int
    pixels: int
    drawn: Sequence[str]
    resample: Callable[[Array], Array]
    noise: Callable[[Array], Array] | None = None

    @classmethod
    def mean(cls, each: Sequence[PooledMetrics]) -> PooledMetrics:
        """Return the mean over the channels of a sigmoid head, of those that have pixels; pixels are added up."""
        held = [own for own in each if own.pixels] or each[:1]
        return cls(
            {name: float(_known_mean(np.array([own.values[name] for own in held]))) for name in held[0].values},
            held[0].images,
            sum(own.pixels for own in held),
            held[0].drawn,
            lambda weights: _known_mean(np.stack([own.resample(weights) for own in held])),
            lambda weights: _known_mean(np.stack([own.noise(weights) for own in held if own.noise is not None])),
        )

    def rows(self, drawing: Drawing) -> Iterator[tuple[str, float, float, float, int, int]]:
        """Yield each metric with its value, the ends of its interval, and the number of cases and of pixels."""
        ends = drawing.intervals(self.resample, self.noise) if self.pixels else (np.full(len(self.drawn), np.nan),) * 2
        interval = dict(zip(self.drawn, zip(*ends, strict=True), strict=True))
        for name in POOLED_METRICS:
            low, high = interval.get(name, (np.nan, np.nan))
            yield name, self.values[name], float(low), float(high), self.images, self.pixels


def pooled_metrics(table: Array, cells: Histogram, class_cells: Histogram | None, form: Form) -> PooledMetrics:
    """Return the metrics of a region over all cases.

    Args:
        table: Evidence of one region of each case: `[cases, E]` (`Evidence.to_vectors`).
        cells: Fine histogram of top confidences.
        class_cells: Fine histogram of the probability of every class, in the form `marginal`.
        form: Form of SCE and ACE.
    """
    classes, marginal = len(cells.pixels), class_cells is not None

    def evidence(vectors: Array) -> Evidence:
        return Evidence.from_vectors(torch.from_numpy(vectors), classes, marginal=marginal)

    total = replace(evidence(table.sum(axis=0)), cells=cells, static_cells=class_cells)
    values = read(total, [name for name in POOLED_METRICS if name != "ece-smooth"], form)
    pixels = int(values.pop("pixels"))
    numbers = {**{name: float(value) for name, value in values.items()}, "ece-smooth": smooth_ece(cells)}
    drawn = [name for name in numbers if name not in WITHOUT_INTERVAL]

    def resample(weights: Array) -> Array:
        found = read(evidence(weighted_sums(weights, table)), drawn, form)
        return torch.stack([found[name] for name in drawn], dim=-1).numpy()

    def noise(weights: Array) -> Array:
        own = evidence(weighted_sums(weights, table))
        merged = _centred(merge_classes(own.top), merge_classes(total.top))
        static = _centred(own.static or own.top, total.static or total.top)
        found = {"ece": readings.ece(merged), "mce": readings.mce(merged), "sce": readings.sce(static, form)}
        unknown = torch.full_like(found["ece"], torch.nan)
        return torch.stack([found.get(name, unknown) for name in drawn], dim=-1).numpy()

    return PooledMetrics(numbers, len(table), pixels, drawn, resample, noise)


def _centred(drawn: Histogram, whole: Histogram) -> Histogram:
    """Return a resampled histogram whose gaps are those to the gaps of all images."""
    gap = (whole.hit - whole.confidence) / whole.pixels.clamp(min=1)
    return Histogram(
        drawn.pixels, drawn.hit - drawn.confidence - drawn.pixels * gap, torch.zeros_like(drawn.confidence)
    )


def _known_mean(values: Array) -> Array:
    """Return the mean along the first axis without NaN; NaN where there is nothing else."""
    return torch.from_numpy(values).nanmean(dim=0).numpy()


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
