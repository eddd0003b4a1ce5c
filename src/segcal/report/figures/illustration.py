"""The regions All, Boundary and Local of a case (the paper's illustration in the appendix)."""

from __future__ import annotations

from typing import Any

from segcal.evaluation.portraits import Region
from segcal.report.figures.panels import draw_boxes, picture_axes, show_image, show_labels, show_regions
from segcal.report.figures.request import Request
from segcal.report.figures.style import literal
from segcal.types import InputError


def draw(request: Request) -> Any:
    """Image, labels, the pixels of Boundary, the pixels of All, and the Local patches on the image."""
    portrait = request.portrait()
    if portrait.layer("region") is None:
        raise InputError("these portraits were saved by segcal 0.1, without the regions; evaluate again")
    figure, axes = picture_axes(request.pyplot, portrait, 1, 5 if portrait.boxes else 4)
    show_image(axes[0, 0], portrait)
    show_labels(axes[0, 1], portrait)
    show_regions(axes[0, 2], portrait, (Region.BOUNDARY,))
    show_regions(axes[0, 3], portrait, (Region.ALL, Region.BOUNDARY))
    titles = [literal(portrait.name), "labels", "Boundary", "All, with Boundary"]
    if portrait.boxes:
        show_labels(axes[0, 4], portrait)
        draw_boxes(axes[0, 4], portrait, numbered=False)
        titles.append("Local patches")
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title)
    return figure
