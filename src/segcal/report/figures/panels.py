"""Pictures of a case on axes of matplotlib; of a volume, the middle slice along the first axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from segcal.evaluation.portraits import NOTHING, Kind, Layer, Portrait
from segcal.evaluation.portraits.model import LOGARITHMIC
from segcal.report.colours import REGIONS, channels, class_colours
from segcal.report.figures.drawing import bare
from segcal.types import Array

_WIDTH = 1.7


def picture_axes(pyplot: Any, portrait: Portrait, down: int, across: int, extra: float = 0.3) -> tuple[Any, Any]:
    """Return a grid of axes with the aspect of the case, for pictures only."""
    height, width = plane_extent(portrait)
    size = (_WIDTH * across + 0.4, (_WIDTH * height / width + extra) * down)
    figure, axes = pyplot.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    bare(axes.ravel())
    return figure, axes


def plane_extent(portrait: Portrait) -> tuple[float, float]:
    """Return height and width of a slice, in the unit of the spacing."""
    height, width = (n * step for n, step in zip(portrait.shape[-2:], portrait.spacing[-2:], strict=True))
    return height, width


def slice_index(portrait: Portrait) -> int:
    """Return the index of the middle one of the kept slices."""
    return len(portrait.kept[0]) // 2


def slice_of(values: Array, portrait: Portrait) -> Array:
    """Return the picture itself, or the middle slice of a volume."""
    return values if len(portrait.shape) == 2 else values[slice_index(portrait)]


def show_image(axis: Any, portrait: Portrait) -> Any:
    """Draw the image, or the labels of a case without one."""
    layer = portrait.layer("image")
    if layer is None:
        return show_labels(axis, portrait)
    return _show(axis, portrait, slice_of(layer.values, portrait), cmap="gray", vmin=0, vmax=255)


def show_labels(axis: Any, portrait: Portrait, kind: Kind = "truth") -> Any:
    """Draw true or predicted classes in colour; ignored pixels are grey."""
    layer = portrait.layer(kind)
    if layer is None:
        return None
    palette = class_colours(max(portrait.classes, default=0) + 1)
    picture = coloured(slice_of(layer.values, portrait), [palette[c] for c in portrait.classes])
    return _show(axis, portrait, picture)


def show_regions(axis: Any, portrait: Portrait, shown: tuple[int, ...]) -> None:
    """Draw the pixels of some regions in their colour, and all others in light grey."""
    layer = portrait.layer("region")
    if layer is not None:
        values = slice_of(layer.values, portrait)
        kept = np.where(np.isin(values, shown), values, np.where(values == NOTHING, NOTHING, 0))
        _show(axis, portrait, coloured(kept, REGIONS))


def show_map(axis: Any, portrait: Portrait, layer: Layer) -> Any:
    """Draw a map, temperatures in equal steps of their logarithm; returns what a colour bar needs."""
    colours = {"cmap": "viridis", "vmax": 1}
    if layer.kind in LOGARITHMIC:
        colours = {"cmap": "PuOr_r", "vmax": layer.high, "norm": "log"}
    return _show(axis, portrait, slice_of(layer.numbers(), portrait), vmin=layer.low, **colours)


def show_scale(figure: Any, drawn: Any, values: Sequence[float], labels: Sequence[str], **position: Any) -> None:
    """Draw the colour bar of a map with labels at some values."""
    bar = figure.colorbar(drawn, **position)
    bar.set_ticks(values, labels=labels)
    bar.minorticks_off()
    bar.outline.set_linewidth(0.4)


def draw_boxes(axis: Any, portrait: Portrait, *, numbered: bool = True) -> None:
    """Draw the Local patches that the slice cuts: all of them thin, or the three chosen ones with their numbers."""
    place = portrait.kept[0][slice_index(portrait)] if len(portrait.shape) == 3 else None
    chosen = [(patch.start, patch.stop, str(k + 1)) for k, patch in enumerate(portrait.patches)]
    boxes = chosen if numbered else [(start, stop, "") for start, stop in portrait.boxes]
    for start, stop, name in boxes:
        if place is not None and not start[0] <= place < stop[0]:
            continue
        (top, left), (end, right) = start[-2:], stop[-2:]
        (dy, dx) = portrait.spacing[-2:]
        axis.plot(
            np.array([left, right, right, left, left]) * dx,
            np.array([top, top, end, end, top]) * dy,
            color="white" if numbered else "black",
            lw=1.2 if numbered else 0.6,
            scalex=False,
            scaley=False,
        )
        if name:
            axis.text(left * dx, top * dy, f" {name}", color="white", va="top", weight="bold")


def coloured(values: Array, palette: Sequence[str]) -> Array:
    """Return positions in a palette as colours; those without one, as ignored pixels, are grey."""
    colours = np.full((NOTHING + 1, 3), 128, np.uint8)
    colours[: len(palette)] = [channels(colour) for colour in palette]
    return colours[values]


def _show(axis: Any, portrait: Portrait, values: Array, **options: Any) -> Any:
    height, width = plane_extent(portrait)
    axis.set_facecolor("#808080")  # seen where a map has no value, as on the page
    return axis.imshow(values, interpolation="nearest", extent=(0, width, height, 0), **options)
