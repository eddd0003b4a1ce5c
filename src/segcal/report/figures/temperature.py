"""Temperature maps of a case."""

from __future__ import annotations

from typing import Any

import numpy as np

from segcal.report.figures.panels import log_norm, picture_axes, show_image, show_map
from segcal.report.figures.request import Request
from segcal.report.figures.style import literal
from segcal.types import InputError


def draw(request: Request) -> Any:
    """The image, and the temperature map of each method that has one, on one scale; the middle slice of a volume."""
    portrait = request.portrait()
    heats = {method: layer for method in request.methods if (layer := portrait.layer("temperature", method))}
    if not heats:
        raise InputError(f"none of {', '.join(request.methods)} has a temperature; choose a method such as LTS")
    image = portrait.layer("image")
    figure, axes = picture_axes(request.pyplot, portrait, 1, len(heats) + (image is not None))
    if image is not None:
        show_image(axes[0, 0], portrait)
        axes[0, 0].set_title(literal(portrait.name))
    for (method, layer), axis in zip(heats.items(), axes[0, axes.shape[1] - len(heats) :], strict=True):
        norm = log_norm(request.pyplot, layer)
        drawn = show_map(axis, portrait, layer, cmap="PuOr_r", norm=norm)
        axis.set_title(f"{literal(method)} temperature")
    bar = figure.colorbar(drawn, ax=axes[0].tolist(), shrink=0.9, pad=0.02)
    scale = next(iter(heats.values()))
    marks = np.geomspace(scale.low, scale.high, 5)
    bar.set_ticks(marks.tolist(), labels=[f"{mark:.2g}" for mark in marks])
    bar.minorticks_off()
    bar.outline.set_linewidth(0.4)
    return figure
