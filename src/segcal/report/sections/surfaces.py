"""Segmentation quality: Dice, surface Dice and surface distances, and those of each structure."""

from __future__ import annotations

from typing import Any

from segcal.functional.catalogue import SURFACES
from segcal.report.view import View, short
from segcal.tables import surface_dice_in_words, surface_headings


def content(view: View) -> dict[str, Any] | None:
    """Means of each method, and of each structure of the first method; None where they were not measured."""
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
        "surface_dice": surface_dice_in_words(unit, settings["surface_tolerance"]),
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
