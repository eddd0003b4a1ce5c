"""The worst images and patches."""

from __future__ import annotations

import math
from typing import Any

from segcal.report.view import View, short

_WORST_PATCHES = 50


def content(view: View) -> dict[str, Any]:
    """The patches with the largest ECE of the baseline, with that of every method; images are shared."""
    return {"patches": _patches(view)}


def _patches(view: View) -> list[dict[str, Any]]:
    results, patches = view.results, view.results.patches()
    if not len(patches):
        return []
    rows = patches[patches.metric == "ece"]
    wide = rows.pivot_table(index=["case", "patch", "origin"], columns="method", values="value", sort=False)
    if results.baseline not in wide:
        return []
    worst = wide.sort_values(results.baseline, ascending=False, kind="stable").head(_WORST_PATCHES)
    return [
        {
            "case": str(row["case"]),
            "patch": int(row["patch"]),
            "origin": str(row["origin"]),
            "values": [short(row.get(method, math.nan)) for method in results.methods],
        }
        for row in worst.reset_index().to_dict(orient="records")
    ]
