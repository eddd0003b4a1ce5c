"""Tables and curves: every method, metric and region, single images and patches, other estimates, decisions."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from segcal.evaluation.decisions import Decisions, decision_tables
from segcal.evaluation.limits import limits_table
from segcal.report.view import KEYS, View, nested, short
from segcal.tables import TextTable
from segcal.tables.numbers import number

_WORST_PATCHES = 50
_BINS = (5, 10, 15, 20, 25, 30, 40, 50, 75, 100)


def channels(view: View) -> dict[str, Any] | None:
    """Return channel -> method -> region -> metric -> value and interval; None unless there are several channels."""

    def entries(row: Any) -> list[float | None]:
        return [short(row.value), short(row.low), short(row.high)]

    return {name: nested(own.pooled_frame, KEYS, entries) for name, own in view.results.channels.items()} or None


def likelihood(view: View) -> dict[str, Any] | None:
    """Return an empty dictionary where the NLL in *All* was measured; None elsewhere."""
    pooled = view.results.pooled_frame
    return {} if len(pooled[(pooled.metric == "nll") & (pooled.region == "all")].dropna(subset=["value"])) else None


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
    rows = [(name, *(number(m, view.value(name, m).value) for m in metrics)) for name in view.results.methods]
    over = f"Averages: {view.average}."
    return [vars(limits_table(frame)), vars(TextTable(("Method", *metrics.values()), rows, "The methods", over))]


def sizes(view: View) -> Any:
    """Return region -> metric -> method -> [patch size, mean over images]."""
    if view.results.size_frame is None:
        return None
    keys = ["region", "metric", "method"]
    means = view.results.patch_sizes().groupby([*keys, "size"], sort=False)["value"].mean()
    ordered = means.reset_index().sort_values("size", kind="stable")
    return nested(ordered, keys, lambda row: [row.size, short(row.value)], lists=True)


def trust(view: View) -> dict[str, Any]:
    """Return the pooled ECE in *All* by number of bins, and by how much expected volumes are off."""
    results = view.results
    rows = results.sensitivity_frame
    rows = rows[(rows.region == "all") & rows.bins.isin(_BINS)]
    found = nested(rows, ("method",), lambda row: [int(row.bins), short(row.ece)], lists=True)
    volumes = nested(
        results.volume_bias(), ("label", "method"), lambda row: [short(row.bias), short(row.low), short(row.high)]
    )
    return {"bins": {method: found.get(method, []) for method in results.methods}, "volumes": volumes}


def worst(view: View) -> dict[str, Any]:
    """Return the patches with the largest ECE of the baseline, with that of every method."""
    results = view.results
    rows = results.patch_frame[results.patch_frame.metric == "ece"]
    if not len(rows):
        return {"patches": []}
    wide = rows.pivot_table(index=["case", "patch", "origin"], columns="method", values="value", sort=False)
    if results.baseline not in wide:
        return {"patches": []}
    first = wide.sort_values(results.baseline, ascending=False, kind="stable").head(_WORST_PATCHES)
    return {"patches": [_patch(row, results.methods) for row in first.reset_index().to_dict(orient="records")]}


def _patch(row: Mapping[Hashable, Any], methods: Sequence[str]) -> dict[str, Any]:
    about = {"name": str(row["case"]), "patch": int(row["patch"]), "origin": str(row["origin"])}
    return {**about, "values": [short(row.get(method, math.nan)) for method in methods]}


def decisions(view: View) -> dict[str, Any] | None:
    """Return the decisions given with the results; None without any."""
    return None if view.decisions is None else decisions_content(view.decisions)


def decisions_content(decisions: Decisions) -> dict[str, Any]:
    """Return the tables, and curves of risk against coverage."""

    def point(row: Any) -> list[float | None]:
        return [short(row.coverage), short(row.risk), short(row.confidence)]

    return {
        "channels": list(decisions.channels),
        "curves": nested(decisions.curves, ("channel", "unit", "method"), point, lists=True),
        "tables": [vars(table) for table in decision_tables(decisions)],
    }
