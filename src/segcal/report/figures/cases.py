"""Figures of single cases: reliability by place, maps, temperatures, regions, and several cases beside one another.

Of a volume, the middle slice along the first axis is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from PIL.ImageColor import getrgb

from segcal.evaluation.portraits import NOTHING, Kind, Layer, PixelRegion, Portrait
from segcal.evaluation.portraits.model import LOGARITHMIC
from segcal.functional.catalogue import metric_named
from segcal.report.colours import REGIONS, class_colours
from segcal.report.figures.drawing import Request, bare, literal
from segcal.report.figures.reliability import Bins, diagram, histogram
from segcal.tables.numbers import with_unit
from segcal.types import Array, InputError

_ACROSS = 8
_WIDTH = 1.7

Picture: TypeAlias = tuple[str, Callable[[Any], Any]]
"""A title, and a function that draws on an axis and returns what a colour bar needs."""


def draw_local(request: Request) -> Any:
    """Draw a histogram beside the diagram of each method, for the whole case and for three patches (Fig. 2).

    On the left: image, confidence of the baseline and prediction of the case, with the patches.
    """
    portrait, baseline = request.portrait(), request.results.baseline
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
    bare(axes[:, 0])
    show, layer = CasePictures(portrait), portrait.layer("confidence", baseline)
    confidence = ("", lambda axis: None) if layer is None else (f"confidence, {baseline}", partial(show.map, layer))
    prediction = ("prediction", partial(show.labels, kind="prediction"))
    _show_all(axes[:, 0], [show.titled_image, confidence, prediction, ("labels", show.labels)])
    show.boxes(axes[0, 0])
    for k, (curves, line) in enumerate(zip(rows, axes, strict=True)):
        for j, method in enumerate(request.methods):
            bins = Bins.of_sums(*np.array(curves[method], float).T)
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


def draw_locations(request: Request) -> Any:
    """Draw the image, the confidence, the accuracy of each pixel's bin and the best temperature around it (Fig. 1)."""
    portrait, baseline = request.portrait(), request.results.baseline
    layers = [layer for kind in ("confidence", "accuracy", "optimum") if (layer := portrait.layer(kind, baseline))]
    if len(layers) < 3:
        raise InputError(f"there are no maps of {baseline} in '{portrait.name}'; evaluate again")
    titles = (f"confidence, {baseline}", "accuracy of the bin", "best temperature nearby")
    show = CasePictures(portrait)
    maps = [(title, partial(show.map, layer)) for title, layer in zip(titles, layers, strict=True)]
    figure, axes, (picture, *drawn) = _row(request, portrait, [show.titled_image, *maps], extra=0.65)
    below = {"location": "bottom", "pad": 0.04, "aspect": 16}
    figure.colorbar(picture, ax=axes[0], **below).ax.set_visible(False)  # same height
    for axis, layer, shown in zip(axes[1:], layers, drawn, strict=True):
        middle = 1 if layer.kind in LOGARITHMIC else (layer.low + 1) / 2
        ends = [layer.low, middle, layer.high if layer.kind in LOGARITHMIC else 1]
        _show_scale(figure, shown, ends, [f"{end:.3g}" for end in ends], ax=axis, **below)
    return figure


def draw_temperature(request: Request) -> Any:
    """Draw the image and the temperature map of each method that has one, on one scale; a volume's middle slice."""
    portrait = request.portrait()
    heats = {method: layer for method in request.methods if (layer := portrait.layer("temperature", method))}
    if not heats:
        raise InputError(f"none of {', '.join(request.methods)} has a temperature; choose a method such as LTS")
    show = CasePictures(portrait)
    maps = [(f"{method} temperature", partial(show.map, layer)) for method, layer in heats.items()]
    image = [] if portrait.layer("image") is None else [show.titled_image]
    figure, axes, drawn = _row(request, portrait, [*image, *maps])
    scale = next(iter(heats.values()))
    marks = np.geomspace(scale.low, scale.high, 5).tolist()
    _show_scale(figure, drawn[-1], marks, [f"{mark:.2g}" for mark in marks], ax=axes.tolist(), shrink=0.9, pad=0.02)
    return figure


def draw_illustration(request: Request) -> Any:
    """Draw image, labels, the pixels of Boundary, the pixels of All, and the Local patches on the image."""
    portrait = request.portrait()
    show, inside = CasePictures(portrait), (PixelRegion.ALL, PixelRegion.BOUNDARY)
    pictures: list[Picture] = [
        show.titled_image,
        ("labels", show.labels),
        ("Boundary", partial(show.regions, inside[1:])),
        ("All, with Boundary", partial(show.regions, inside)),
        *([("Local patches", show.labels)] if portrait.boxes else []),
    ]
    figure, axes, _ = _row(request, portrait, pictures)
    if portrait.boxes:
        show.boxes(axes[-1], numbered=False)
    return figure


def draw_variation(request: Request) -> Any:
    """Draw image and labels of each portrayed case, with a metric of the first method in All."""
    portraits = request.some_portraits()[:_ACROSS]
    figure, axes = _picture_axes(request.pyplot, portraits[0], 2, len(portraits))
    frame = request.results.to_frame()
    rows = frame[(frame.method == request.methods[0]) & (frame.metric == request.metric) & (frame.region == "all")]
    values = dict(zip(rows["case"], rows["value"], strict=True))
    for portrait, pair in zip(portraits, axes.T, strict=True):
        show = CasePictures(portrait)
        _show_all(pair, [show.titled_image, ("", show.labels)])
        if portrait.name in values:
            title = metric_named(request.metric).title
            pair[1].set_xlabel(f"{title} {with_unit(request.metric, values[portrait.name])}")
    return figure


def _row(request: Request, portrait: Portrait, pictures: Sequence[Picture], extra: float = 0.3) -> Any:
    """Draw pictures of a case beside one another; returns the figure, its axes and what colour bars need."""
    figure, axes = _picture_axes(request.pyplot, portrait, 1, len(pictures), extra)
    return figure, axes[0], _show_all(axes[0], pictures)


def _show_all(axes: Iterable[Any], pictures: Iterable[Picture]) -> list[Any]:
    """Draw each picture on its axis, as far as there are axes, with its title."""
    drawn = []
    for axis, (title, show) in zip(axes, pictures, strict=False):
        drawn.append(show(axis))
        axis.set_title(literal(title))
    return drawn


def _picture_axes(pyplot: Any, portrait: Portrait, down: int, across: int, extra: float = 0.3) -> tuple[Any, Any]:
    """Return a grid of axes with the aspect of the case, for pictures only."""
    height, width = CasePictures(portrait).extent
    size = (_WIDTH * across + 0.4, (_WIDTH * height / width + extra) * down)
    figure, axes = pyplot.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    bare(axes.ravel())
    return figure, axes


@dataclass(frozen=True)
class CasePictures:
    """The pictures of a portrait; of a volume, the middle one of the slices that are kept."""

    portrait: Portrait

    @property
    def extent(self) -> tuple[float, float]:
        """Height and width of a slice, in the unit of the spacing."""
        shape, spacing = self.portrait.shape, self.portrait.spacing
        return shape[-2] * spacing[-2], shape[-1] * spacing[-1]

    @property
    def titled_image(self) -> Picture:
        """The image below the name of the case."""
        return self.portrait.name, self.image

    def image(self, axis: Any) -> Any:
        """Draw the image, or the labels of a case without one."""
        layer = self.portrait.layer("image")
        return self.labels(axis) if layer is None else self._show(axis, layer.values, cmap="gray", vmin=0, vmax=255)

    def labels(self, axis: Any, kind: Kind = "truth") -> Any:
        """Draw true or predicted classes in colour; ignored pixels are grey."""
        layer, classes = self.portrait.layer(kind), self.portrait.classes
        if layer is None:
            return None
        palette = class_colours(max(classes, default=0) + 1)
        return self._show(axis, coloured(layer.values, [palette[c] for c in classes]))

    def regions(self, shown: tuple[int, ...], axis: Any) -> Any:
        """Draw the pixels of some regions in their colour, and all others in light grey."""
        if (layer := self.portrait.layer("region")) is None:
            return None
        return self._show(axis, coloured(np.where(np.isin(layer.values, (*shown, NOTHING)), layer.values, 0), REGIONS))

    def map(self, layer: Layer, axis: Any) -> Any:
        """Draw a map, temperatures in equal steps of their logarithm."""
        colours: dict[str, Any] = {"cmap": "viridis", "vmax": 1}
        if layer.kind in LOGARITHMIC:
            colours = {"cmap": "PuOr_r", "vmax": layer.high, "norm": "log"}
        return self._show(axis, layer.numbers(), vmin=layer.low, **colours)

    def boxes(self, axis: Any, *, numbered: bool = True) -> None:
        """Draw the Local patches that the slice cuts: all of them thin, or the three chosen ones with their numbers."""
        portrait = self.portrait
        place = portrait.kept[0][len(portrait.kept[0]) // 2] if len(portrait.shape) == 3 else None
        boxes, style = [(*box, "") for box in portrait.boxes], {"color": "black", "lw": 0.6}
        if numbered:
            boxes = [(patch.start, patch.stop, f" {k + 1}") for k, patch in enumerate(portrait.patches)]
            style = {"color": "white", "lw": 1.2}
        dy, dx = portrait.spacing[-2:]
        for start, stop, name in boxes:
            if place is not None and not start[0] <= place < stop[0]:
                continue
            (top, left), (end, right) = start[-2:], stop[-2:]
            across, down = np.array([left, right, right, left, left]), np.array([top, top, end, end, top])
            axis.plot(across * dx, down * dy, scalex=False, scaley=False, **style)
            if name:
                axis.text(left * dx, top * dy, name, color="white", va="top", weight="bold")

    def _show(self, axis: Any, values: Array, **options: Any) -> Any:
        height, width = self.extent
        drawn = values if len(self.portrait.shape) == 2 else values[len(self.portrait.kept[0]) // 2]
        axis.set_facecolor("#808080")  # seen where a map has no value, as on the page
        return axis.imshow(drawn, interpolation="nearest", extent=(0, width, height, 0), **options)


def _show_scale(figure: Any, drawn: Any, values: Sequence[float], labels: Sequence[str], **position: Any) -> None:
    """Draw the colour bar of a map with labels at some values."""
    bar = figure.colorbar(drawn, **position)
    bar.set_ticks(values, labels=labels)
    bar.minorticks_off()
    bar.outline.set_linewidth(0.4)


def coloured(values: Array, palette: Sequence[str]) -> Array:
    """Return positions in a palette as colours; those without one, as ignored pixels, are grey."""
    colours = np.full((NOTHING + 1, 3), 128, np.uint8)
    colours[: len(palette)] = [getrgb(colour) for colour in palette]
    return colours[values]
