"""Means over images with their intervals, and the values that paired tests compare."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from segcal.statistics import Drawing, clusters_of, weighted_ratio
from segcal.types import Array


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
