"""How images of a data set differ (the paper's figure of data set variations)."""

from __future__ import annotations

from typing import Any

from segcal.functional.catalogue import CATALOGUE
from segcal.report.figures.panels import picture_axes, show_image, show_labels
from segcal.report.figures.request import Request
from segcal.report.figures.style import literal
from segcal.tables.numbers import with_unit

_ACROSS = 8


def draw(request: Request) -> Any:
    """Image and labels of each portrayed case, with a metric of the first method in All."""
    portraits = request.some_portraits()[:_ACROSS]
    figure, axes = picture_axes(request.pyplot, portraits[0], 2, len(portraits))
    frame = request.results.to_frame()
    rows = frame[(frame.method == request.methods[0]) & (frame.metric == request.metric) & (frame.region == "all")]
    values = dict(zip(rows["case"], rows["value"], strict=True))
    for portrait, (upper, lower) in zip(portraits, axes.T, strict=True):
        show_image(upper, portrait)
        show_labels(lower, portrait)
        upper.set_title(literal(portrait.name))
        if portrait.name in values:
            title = CATALOGUE[request.metric].title
            lower.set_xlabel(f"{title} {with_unit(request.metric, values[portrait.name])}")
    return figure
