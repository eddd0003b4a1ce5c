"""Figures of single cases: reliability by place, maps, temperatures, regions, and several cases beside one another.

Of a volume, the middle slice along the first axis is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from segcal.evaluation.portraits import NOTHING, Kind, Layer, PixelRegion, Portrait
from segcal.evaluation.portraits.model import LOGARITHMIC
from segcal.functional.catalogue import metric_named
from segcal.report.colours import REGIONS, channels, class_colours
from segcal.report.figures.drawing import Request, bare, literal
from segcal.report.figures.reliability import Bins, diagram, histogram
from segcal.tables.numbers import with_unit
from segcal.types import Array, InputError

_ACROSS = 8
_WIDTH = 1.7


def draw_local(request: Request) -> Any:
    """Draw a histogram beside the diagram of each method, for the whole case and for three patches (Fig. 2).

    On the left: image, confidence of the baseline and prediction of the case, with the patches.
    """
    portrait = request.portrait()
    if not portrait.patches:
        raise InputError(f"'{portrait.name}' has no Local patches; evaluate with patches (--patches 10)")
    rows = [portrait.curves, *(patch.curves for patch in portrait.patches)]
    across = 1 + 2 * len(request.methods)
    figure, axes = request.pyplot.subplots(
        len(rows),
        across,
        figsize=(1.05 * across + 0.3, 1.3 * len(rows) + 0.3),
        squeeze=False,
        layout="constrained",
        width_ratios=[1.25, *[1] * (across - 1)],
    )
    _pictures(axes[:, 0], portrait, request)
    for k, (curves, line) in enumerate(zip(rows, axes, strict=True)):
        for j, method in enumerate(request.methods):
            bins = Bins.of_curve(curves[method])
            left, right = line[1 + 2 * j], line[2 + 2 * j]
            histogram(left, bins)
            left.set(ylim=(0, 100), box_aspect=1)
            diagram(right, bins, dot=1.4)
            right.set_title(f"ECE {with_unit('ece', bins.ece)}", fontsize=7)
            left.set_title(literal(method) if k == 0 else "", weight="bold")
            for axis in (left, right):
                axis.tick_params(labelsize=5, length=2)
                axis.set(xlabel="confidence" if k == len(rows) - 1 else "")
            left.set_ylabel("pixels (%)", fontsize=6, labelpad=1)
            right.set_ylabel("accuracy", fontsize=6, labelpad=1)
        line[0].set_ylabel("whole image" if k == 0 else f"patch {k}")
    return figure


def _pictures(axes: Any, portrait: Portrait, request: Request) -> None:
    """Image with the patches, confidence, prediction and truth, one below the other."""
    bare(axes)
    _show_image(axes[0], portrait)
    _draw_boxes(axes[0], portrait)
    axes[0].set_title(literal(portrait.name))
    if len(axes) > 1 and (layer := portrait.layer("confidence", request.results.baseline)) is not None:
        _show_map(axes[1], portrait, layer)
        axes[1].set_title(f"confidence, {literal(request.results.baseline)}")
    if len(axes) > 2:
        _show_labels(axes[2], portrait, "prediction")
        axes[2].set_title("prediction")
    if len(axes) > 3:
        _show_labels(axes[3], portrait)
        axes[3].set_title("labels")


def draw_locations(request: Request) -> Any:
    """Draw the image, the confidence, the accuracy of each pixel's bin and the best temperature around it (Fig. 1)."""
    portrait, baseline = request.portrait(), request.results.baseline
    confidence, accuracy, optimum = (portrait.layer(kind, baseline) for kind in ("confidence", "accuracy", "optimum"))
    if confidence is None or accuracy is None or optimum is None:
        raise InputError(f"there are no maps of {baseline} in '{portrait.name}'; evaluate again")
    figure, axes = _picture_axes(request.pyplot, portrait, 1, 4, extra=0.65)
    picture = _show_image(axes[0, 0], portrait)
    figure.colorbar(picture, ax=axes[0, 0], location="bottom", pad=0.04, aspect=16).ax.set_visible(False)  # same height
    axes[0, 0].set_title(literal(portrait.name))
    titles = (f"confidence, {literal(baseline)}", "accuracy of the bin", "best temperature nearby")
    for axis, layer, title in zip(axes[0, 1:], (confidence, accuracy, optimum), titles, strict=True):
        drawn = _show_map(axis, portrait, layer)
        axis.set_title(title)
        ends = [layer.low, 1, layer.high] if layer is optimum else [layer.low, (layer.low + 1) / 2, 1]
        _show_scale(
            figure, drawn, ends, [f"{end:.3g}" for end in ends], ax=axis, location="bottom", pad=0.04, aspect=16
        )
    return figure


def draw_temperature(request: Request) -> Any:
    """Draw the image and the temperature map of each method that has one, on one scale; a volume's middle slice."""
    portrait = request.portrait()
    heats = {method: layer for method in request.methods if (layer := portrait.layer("temperature", method))}
    if not heats:
        raise InputError(f"none of {', '.join(request.methods)} has a temperature; choose a method such as LTS")
    image = portrait.layer("image")
    figure, axes = _picture_axes(request.pyplot, portrait, 1, len(heats) + (image is not None))
    if image is not None:
        _show_image(axes[0, 0], portrait)
        axes[0, 0].set_title(literal(portrait.name))
    for (method, layer), axis in zip(heats.items(), axes[0, axes.shape[1] - len(heats) :], strict=True):
        drawn = _show_map(axis, portrait, layer)
        axis.set_title(f"{literal(method)} temperature")
    scale = next(iter(heats.values()))
    marks = np.geomspace(scale.low, scale.high, 5).tolist()
    _show_scale(figure, drawn, marks, [f"{mark:.2g}" for mark in marks], ax=axes[0].tolist(), shrink=0.9, pad=0.02)
    return figure


def draw_illustration(request: Request) -> Any:
    """Draw image, labels, the pixels of Boundary, the pixels of All, and the Local patches on the image."""
    portrait = request.portrait()
    figure, axes = _picture_axes(request.pyplot, portrait, 1, 5 if portrait.boxes else 4)
    _show_image(axes[0, 0], portrait)
    _show_labels(axes[0, 1], portrait)
    _show_regions(axes[0, 2], portrait, (PixelRegion.BOUNDARY,))
    _show_regions(axes[0, 3], portrait, (PixelRegion.ALL, PixelRegion.BOUNDARY))
    titles = [literal(portrait.name), "labels", "Boundary", "All, with Boundary"]
    if portrait.boxes:
        _show_labels(axes[0, 4], portrait)
        _draw_boxes(axes[0, 4], portrait, numbered=False)
        titles.append("Local patches")
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title)
    return figure


def draw_variation(request: Request) -> Any:
    """Draw image and labels of each portrayed case, with a metric of the first method in All."""
    portraits = request.some_portraits()[:_ACROSS]
    figure, axes = _picture_axes(request.pyplot, portraits[0], 2, len(portraits))
    frame = request.results.to_frame()
    rows = frame[(frame.method == request.methods[0]) & (frame.metric == request.metric) & (frame.region == "all")]
    values = dict(zip(rows["case"], rows["value"], strict=True))
    for portrait, (upper, lower) in zip(portraits, axes.T, strict=True):
        _show_image(upper, portrait)
        _show_labels(lower, portrait)
        upper.set_title(literal(portrait.name))
        if portrait.name in values:
            title = metric_named(request.metric).title
            lower.set_xlabel(f"{title} {with_unit(request.metric, values[portrait.name])}")
    return figure


def _picture_axes(pyplot: Any, portrait: Portrait, down: int, across: int, extra: float = 0.3) -> tuple[Any, Any]:
    """Return a grid of axes with the aspect of the case, for pictures only."""
    height, width = _extent(portrait)
    size = (_WIDTH * across + 0.4, (_WIDTH * height / width + extra) * down)
    figure, axes = pyplot.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    bare(axes.ravel())
    return figure, axes


def _extent(portrait: Portrait) -> tuple[float, float]:
    """Return height and width of a slice, in the unit of the spacing."""
    height, width = (n * step for n, step in zip(portrait.shape[-2:], portrait.spacing[-2:], strict=True))
    return height, width


def _slice_of(values: Array, portrait: Portrait) -> Array:
    """Return the picture itself, or the middle one of the kept slices of a volume."""
    return values if len(portrait.shape) == 2 else values[len(portrait.kept[0]) // 2]


def _show_image(axis: Any, portrait: Portrait) -> Any:
    """Draw the image, or the labels of a case without one."""
    layer = portrait.layer("image")
    if layer is None:
        return _show_labels(axis, portrait)
    return _show(axis, portrait, _slice_of(layer.values, portrait), cmap="gray", vmin=0, vmax=255)


def _show_labels(axis: Any, portrait: Portrait, kind: Kind = "truth") -> Any:
    """Draw true or predicted classes in colour; ignored pixels are grey."""
    layer = portrait.layer(kind)
    if layer is None:
        return None
    palette = class_colours(max(portrait.classes, default=0) + 1)
    picture = coloured(_slice_of(layer.values, portrait), [palette[c] for c in portrait.classes])
    return _show(axis, portrait, picture)


def _show_regions(axis: Any, portrait: Portrait, shown: tuple[int, ...]) -> None:
    """Draw the pixels of some regions in their colour, and all others in light grey."""
    layer = portrait.layer("region")
    if layer is not None:
        values = _slice_of(layer.values, portrait)
        kept = np.where(np.isin(values, shown), values, np.where(values == NOTHING, NOTHING, 0))
        _show(axis, portrait, coloured(kept, REGIONS))


def _show_map(axis: Any, portrait: Portrait, layer: Layer) -> Any:
    """Draw a map, temperatures in equal steps of their logarithm; returns what a colour bar needs."""
    colours = {"cmap": "viridis", "vmax": 1}
    if layer.kind in LOGARITHMIC:
        colours = {"cmap": "PuOr_r", "vmax": layer.high, "norm": "log"}
    return _show(axis, portrait, _slice_of(layer.numbers(), portrait), vmin=layer.low, **colours)


def _show_scale(figure: Any, drawn: Any, values: Sequence[float], labels: Sequence[str], **position: Any) -> None:
    """Draw the colour bar of a map with labels at some values."""
    bar = figure.colorbar(drawn, **position)
    bar.set_ticks(values, labels=labels)
    bar.minorticks_off()
    bar.outline.set_linewidth(0.4)


def _draw_boxes(axis: Any, portrait: Portrait, *, numbered: bool = True) -> None:
    """Draw the Local patches that the slice cuts: all of them thin, or the three chosen ones with their numbers."""
    place = portrait.kept[0][len(portrait.kept[0]) // 2] if len(portrait.shape) == 3 else None
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
    height, width = _extent(portrait)
    axis.set_facecolor("#808080")  # seen where a map has no value, as on the page
    return axis.imshow(values, interpolation="nearest", extent=(0, width, height, 0), **options)
