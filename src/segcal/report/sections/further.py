"""Sections on tables that only some results have: surfaces, limits, patches, patch sizes, volumes, numbers of bins."""

from __future__ import annotations

import math
from typing import Any

from segcal.evaluation.protocol import Protocol
from segcal.functional.catalogue import CATALOGUE, SURFACES
from segcal.report.view import View, nested, short
from segcal.tables import surface_dice_in_words, surface_headings

_WORST_PATCHES = 50
_BINS = (5, 10, 15, 20, 25, 30, 40, 50, 75, 100)

Points = dict[str, list[list[float | None]]]
"""Method -> points of a line."""


def surfaces(view: View) -> dict[str, Any] | None:
    """Return Dice and surface distances of each method, and of each structure of the first method."""
    if view.results.surface_frame is None:
        return None
    frame, first = view.results.surfaces(), view.results.methods[0]
    means = view.results.mean_surfaces()
    of_first = frame[frame.method == first].groupby(["label", "metric"], sort=False)["value"].mean()
    settings = view.results.settings
    unit = settings.get("surface_unit", "")
    return {
        "metrics": [
            {"title": heading, "scale": metric.scale, "digits": metric.digits}
            for heading, metric in zip(surface_headings(unit), SURFACES.values(), strict=True)
        ],
        "surface_dice": surface_dice_in_words(unit, Protocol.of(settings).surface_tolerance),
        "methods": [
            {"name": str(method), "values": [short(value) for value in rows["mean"]]}
            for method, rows in means.groupby("method", sort=False)
        ],
        "labels": [
            {"name": label, "values": [short(of_first[label, name]) for name in SURFACES]}
            for label in dict.fromkeys(frame["label"])
            if (label, "dice") in of_first.index
        ],
        "first": first,
        "alone": int(means["undefined"].max()),
    }


def limits(view: View) -> dict[str, Any] | None:
    """Return scores of temperatures chosen with the labels, by level and metric, and those of the methods."""
    frame = view.results.limits_frame
    if frame is None or not len(frame):
        return None
    metrics = [metric for metric in ("nll", "ece") if metric in set(frame["metric"])]
    levels = frame.pivot_table(index="level", columns="metric", values="value", sort=False)
    found = {method: [view.scores.value(method, metric) for metric in metrics] for method in view.results.methods}
    return {
        "metrics": [{"name": metric, "title": CATALOGUE[metric].title} for metric in metrics],
        "levels": [
            {"name": str(level), "values": [short(row[metric]) for metric in metrics]}
            for level, row in levels.iterrows()
        ],
        "methods": [
            {"name": method, "values": [None if value is None else short(value.value) for value in values]}
            for method, values in found.items()
        ],
    }


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
