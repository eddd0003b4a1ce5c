"""Reliability diagrams over all images, one per method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segcal.report.figures.diagram import Bins, diagram, histogram
from segcal.report.figures.request import Request
from segcal.report.figures.style import literal
from segcal.report.scores import curve_of
from segcal.tables.numbers import with_unit
from segcal.types import InputError


def draw(request: Request) -> Any:
    """Accuracy against confidence with the gaps shaded and intervals drawn, above the histogram of confidence."""
    region, label = request.region or "all", request.label
    found = {}
    for method in request.methods:
        curve = curve_of(request.results, method, region, label)
        if curve is None or not len(curve):
            raise InputError(f"no reliability diagram of region '{region}' and class '{label}'; see results.curves()")
        found[method] = Bins.of_frame(curve)
    return side_by_side(request.pyplot, found)


def side_by_side(pyplot: Any, found: Mapping[str, Bins]) -> Any:
    """Draw diagrams by their titles, four to a row."""
    across = min(len(found), 4)
    down = -(-len(found) // across)
    figure, axes = pyplot.subplots(
        2 * down,
        across,
        figsize=(1.75 * across + 0.35, 2.5 * down),
        height_ratios=[4, 1] * down,
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    pairs = [pair for k in range(down) for pair in axes[2 * k : 2 * k + 2].T]
    for pair in pairs[len(found) :]:
        for axis in pair:
            axis.set_visible(False)
    for (name, bins), (upper, lower) in zip(found.items(), pairs, strict=False):
        diagram(upper, bins)
        upper.set_title(f"{literal(name)}   ECE {with_unit('ece', bins.ece)}".strip())
        histogram(lower, bins)
        lower.set(xlabel="confidence", box_aspect=0.25)
        lower.tick_params(labelbottom=True)
    for upper, lower in pairs[::across]:
        upper.set_ylabel("accuracy")
        lower.set_ylabel("pixels (%)")
    return figure
