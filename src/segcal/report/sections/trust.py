"""Readings that do not depend on the bins of the ECE: other estimators, other numbers of bins, volumes."""

from __future__ import annotations

from typing import Any

from segcal.report.view import View, short

_BINS = (5, 10, 15, 20, 25, 30, 40, 50, 75, 100)


def content(view: View) -> dict[str, Any]:
    """ECE by number of bins, and by how much expected volumes are off."""
    return {"bins": _bins(view), "volumes": _volumes(view)}


def _bins(view: View) -> dict[str, list[list[float | None]]] | None:
    """Method -> [number of bins, pooled ECE in *All*]."""
    if view.results.sensitivity_frame is None:
        return None
    rows = view.results.sensitivity()
    rows = rows[(rows.region == "all") & rows.bins.isin(_BINS)]
    return {
        method: [[int(bins), short(ece)] for bins, ece in zip(own["bins"], own["ece"], strict=True)]
        for method in view.results.methods
        for own in [rows[rows.method == method]]
    }


def _volumes(view: View) -> dict[str, dict[str, list[float | None]]] | None:
    """Class -> method -> relative error of the expected volume, with its interval."""
    if view.results.volume_frame is None:
        return None
    found: dict[str, dict[str, list[float | None]]] = {}
    for row in view.results.volume_bias().itertuples():
        found.setdefault(str(row.label), {})[str(row.method)] = [short(row.bias), short(row.low), short(row.high)]
    return found
