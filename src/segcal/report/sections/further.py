"""Sections on tables that only some results have: surfaces, limits, patches, patch sizes, volumes, numbers of bins."""

from __future__ import annotations

import math
from typing import Any

from segcal.evaluation.limits import limits_table
from segcal.report.view import View, nested, short
from segcal.report.words import average_in_words
from segcal.tables import TextTable
from segcal.tables.numbers import number

_WORST_PATCHES = 50
_BINS = (5, 10, 15, 20, 25, 30, 40, 50, 75, 100)

Points = dict[str, list[list[float | None]]]
"""Method -> points of a line."""


def surfaces(view: View) -> list[dict[str, Any]] | None:
    """Return the segmentation of each method, and of each structure of the first method, as tables."""
    results = view.results
    if results.surface_frame is None:
        return None
    return [vars(results.surface_table()), vars(results.surface_table(results.methods[0]))]


def limits(view: View) -> list[dict[str, Any]] | None:
    """Return scores of temperatures chosen with the labels, and those of the methods, as tables."""
    frame = view.results.limits_frame
    if frame is None or not len(frame):
        return None
    metrics = {"ece": "ECE, %", "nll": "NLL"}
    rows = [(name, *(_number(view, name, metric) for metric in metrics)) for name in view.results.methods]
    over = f"Averages: {average_in_words(view.results)}."
    return [vars(limits_table(frame)), vars(TextTable(("Method", *metrics.values()), rows, "The methods", over))]


def _number(view: View, method: str, metric: str) -> str:
    value = view.value(method, metric)
    return number(metric, math.nan if value is None else value.value)


def sizes(view: View) -> Any:
    """Return region -> metric -> method -> [patch size, mean over images]."""
    if view.results.size_frame is None:
        return None
    keys = ["region", "metric", "method"]
    means = view.results.patch_sizes().groupby([*keys, "size"], sort=False)["value"].mean()
    ordered = means.reset_index().sort_values("size", kind="stable")
    return nested(ordered, keys, lambda row: [row.size, short(row.value)], lists=True)


def trust(view: View) -> dict[str, Any]:
    """Return the ECE by number of bins, and by how much expected volumes are off."""
    return {"bins": _bins(view), "volumes": _volumes(view)}


def worst(view: View) -> dict[str, Any]:
    """Return the patches with the largest ECE of the baseline, with that of every method."""
    results, patches = view.results, view.results.patches()
    rows = patches[patches.metric == "ece"]
    if not len(rows):
        return {"patches": []}
    wide = rows.pivot_table(index=["case", "patch", "origin"], columns="method", values="value", sort=False)
    if results.baseline not in wide:
        return {"patches": []}
    first = wide.sort_values(results.baseline, ascending=False, kind="stable").head(_WORST_PATCHES)
    return {
        "patches": [
            {
                "case": str(row["case"]),
                "patch": int(row["patch"]),
                "origin": str(row["origin"]),
                "values": [short(row.get(method, math.nan)) for method in results.methods],
            }
            for row in first.reset_index().to_dict(orient="records")
        ]
    }


def _bins(view: View) -> Points:
    """Return method -> [number of bins, pooled ECE in *All*]."""
    rows = view.results.sensitivity()
    rows = rows[(rows.region == "all") & rows.bins.isin(_BINS)]
    return {
        method: [[int(bins), short(ece)] for bins, ece in zip(own["bins"], own["ece"], strict=True)]
        for method in view.results.methods
        for own in [rows[rows.method == method]]
    }


def _volumes(view: View) -> Any:
    """Return class -> method -> relative error of the expected volume, with its interval."""
    bias = view.results.volume_bias()
    return nested(bias, ("label", "method"), lambda row: [short(row.bias), short(row.low), short(row.high)])
