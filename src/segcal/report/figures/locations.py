"""What the network says and what would be right, by location (the paper's Fig. 1)."""

from __future__ import annotations

from typing import Any

from segcal.report.figures.panels import log_norm, picture_axes, show_image, show_map
from segcal.report.figures.request import Request
from segcal.report.figures.style import literal
from segcal.types import InputError


def draw(request: Request) -> Any:
    """The image, the confidence, the accuracy of the bin of each pixel, and the best temperature around each pixel."""
    portrait, baseline = request.portrait(), request.results.baseline
    confidence, accuracy, optimum = (portrait.layer(kind, baseline) for kind in ("confidence", "accuracy", "optimum"))
    if confidence is None or accuracy is None or optimum is None:
        raise InputError("these portraits were saved by segcal 0.1, without the maps of this figure; evaluate again")
    figure, axes = picture_axes(request.pyplot, portrait, 1, 4, extra=0.65)
    picture = show_image(axes[0, 0], portrait)
    figure.colorbar(picture, ax=axes[0, 0], location="bottom", pad=0.04, aspect=16).ax.set_visible(False)  # same height
    axes[0, 0].set_title(literal(portrait.name))
    norm = log_norm(request.pyplot, optimum)
    parts = (
        (confidence, f"confidence, {literal(baseline)}", {"cmap": "viridis", "vmin": confidence.low, "vmax": 1}),
        (accuracy, "accuracy of the bin", {"cmap": "viridis", "vmin": accuracy.low, "vmax": 1}),
        (optimum, "best temperature nearby", {"cmap": "PuOr_r", "norm": norm}),
    )
    for axis, (layer, title, colours) in zip(axes[0, 1:], parts, strict=True):
        drawn = show_map(axis, portrait, layer, **colours)
        axis.set_title(title)
        bar = figure.colorbar(drawn, ax=axis, location="bottom", pad=0.04, aspect=16)
        ends = [layer.low, 1, layer.high] if layer is optimum else [layer.low, (layer.low + 1) / 2, 1]
        bar.set_ticks(ends, labels=[f"{end:.3g}" for end in ends])
        bar.minorticks_off()
        bar.outline.set_linewidth(0.4)
    return figure
