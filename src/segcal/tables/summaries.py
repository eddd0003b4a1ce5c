"""Means over images with their intervals, the values that paired tests compare, and the table of classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd

from segcal.functional.catalogue import CATALOGUE
from segcal.statistics import Drawing, clusters_of, weighted_ratio
from segcal.tables.numbers import MISSING, number
from segcal.tables.surfaces import surface_headings
from segcal.tables.text_table import TextTable
from segcal.types import Array

_SURFACES = ("dice", "asd")


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


def structure_table(
    curves: pd.DataFrame,
    volumes: pd.DataFrame,
    surfaces: pd.DataFrame | None,
    methods: Sequence[str],
    *,
    unit: str = "",
    channels: bool = False,
) -> TextTable:
    """Return the table, with a row for each class or channel.

    Methods that keep every label share one column of Dice and one of distances.

    Args:
        curves: Reliability diagrams with the columns of `Results.curves`.
        volumes: Errors of volumes with the columns of `Results.volume_bias`.
        surfaces: Segmentation quality with the columns of `Results.surfaces`; None where it was not measured.
        methods: Methods that are shown.
        unit: Unit of distances.
        channels: Whether the labels are sigmoid channels, which are measured over all of their pixels.
    """
    columns = dict[str, dict[str, str]]()
    for method in methods:
        errors = class_errors(curves, method)
        columns[f"{method} {CATALOGUE['ece'].heading}"] = {name: number("ece", error) for name, error in errors.items()}
    for method in methods:
        own = volumes[volumes.method == method]
        entries = zip(own["label"], own["bias"], strict=True)
        columns[f"{method} volume(%)"] = {
            str(name): f"{100 * bias:+.1f}" for name, bias in entries if not math.isnan(bias)
        }
    notes = ["ECE: in All, of the pixels predicted as the class" if not channels else "ECE: of the channel in All"]
    notes.append("volume: sum of the probabilities against the number of labelled pixels, minus 1")
    if surfaces is None:
        notes.append("Dice and distances: evaluate with --surfaces (surfaces=True)")
    else:
        columns |= _quality_columns(surfaces, methods, unit)
        notes.append("Dice, ASD: means over cases")
    names = dict.fromkeys(name for entries in columns.values() for name in entries)
    rows = [(name, *(entries.get(name, MISSING) for entries in columns.values())) for name in names]
    title = f"{'Channels' if channels else 'Classes'}, all pixels together"
    return TextTable(("Channel" if channels else "Class", *columns), rows, title, f"{'; '.join(notes)}.")


def class_errors(curves: pd.DataFrame, method: str) -> dict[str, float]:
    """Return the ECE in *All* of the pixels predicted as each class, over all cases."""
    rows = curves[(curves.method == method) & (curves.region == "all") & (curves.label != "")]
    gaps = (rows["hit"] - rows["confidence"]).abs().groupby(rows["label"], sort=False).sum()
    pixels = rows["count"].groupby(rows["label"], sort=False).sum()
    return {str(name): float(gaps[name] / pixels[name]) for name in gaps.index if pixels[name]}


def _quality_columns(surfaces: pd.DataFrame, methods: Sequence[str], unit: str) -> dict[str, dict[str, str]]:
    """Return a column of Dice and ASD for each segmentation; methods with the same one share it."""
    headings = dict(zip(("dice", "surface-dice", "asd"), surface_headings(unit), strict=False))
    found = dict[str, dict[str, str]]()
    for metric in _SURFACES:
        rows = surfaces[surfaces.metric == metric]
        means = rows.pivot_table(index="label", columns="method", values="value", sort=False, dropna=False)
        means = means.reindex(columns=list(methods))  # without a column where no class has a value
        texts = {
            method: {str(name): number(metric, value) for name, value in means[method].items()} for method in methods
        }
        same = all(own == texts[methods[0]] for own in texts.values())
        for method in methods[:1] if same else methods:
            found[headings[metric] if same else f"{method} {headings[metric]}"] = texts[method]
    return found
