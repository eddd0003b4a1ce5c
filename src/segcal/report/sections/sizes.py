"""Local-Avg and Local-Max against the size of the patches."""

from __future__ import annotations

from typing import Any

from segcal.report.view import View, short


def content(view: View) -> dict[str, Any] | None:
    """Region -> metric -> method -> [size, mean over images]; None where no further sizes were measured."""
    if view.results.size_frame is None:
        return None
    found: dict[str, dict[str, dict[str, list[list[float | None]]]]] = {}
    means = view.results.patch_sizes().groupby(["region", "metric", "method", "size"], sort=False)["value"].mean()
    for row in means.reset_index().sort_values("size", kind="stable").to_dict(orient="records"):
        points = found.setdefault(row["region"], {}).setdefault(row["metric"], {}).setdefault(row["method"], [])
        points.append([row["size"], short(row["value"])])
    return found
