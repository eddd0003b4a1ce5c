"""Figures of single cases: reliability by place, maps, temperatures, regions, and several cases beside one another."""

from __future__ import annotations

from typing import Any

import numpy as np

from segcal.evaluation.portraits import PixelRegion, Portrait
from segcal.functional.catalogue import metric_named
from segcal.report.figures.drawing import Request, bare, literal
from segcal.report.figures.panels import (
    draw_boxes,
    picture_axes,
    show_image,
    show_labels,
    show_map,
    show_regions,
    show_scale,
)
from segcal.report.figures.reliability import Bins, diagram, histogram
from segcal.tables.numbers import with_unit
from segcal.types import InputError

_ACROSS = 8


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
    show_image(axes[0], portrait)
    draw_boxes(axes[0], portrait)
    axes[0].set_title(literal(portrait.name))
    if len(axes) > 1 and (layer := portrait.layer("confidence", request.results.baseline)) is not None:
        show_map(axes[1], portrait, layer)
        axes[1].set_title(f"confidence, {literal(request.results.baseline)}")
    if len(axes) > 2:
        show_labels(axes[2], portrait, "prediction")
        axes[2].set_title("prediction")
    if len(axes) > 3:
        show_labels(axes[3], portrait)
        axes[3].set_title("labels")


def draw_locations(request: Request) -> Any:
    """Draw the image, the confidence, the accuracy of each pixel's bin and the best temperature around it (Fig. 1)."""
    portrait, baseline = request.portrait(), request.results.baseline
    confidence, accuracy, optimum = (portrait.layer(kind, baseline) for kind in ("confidence", "accuracy", "optimum"))
    if confidence is None or accuracy is None or optimum is None:
        raise InputError(f"there are no maps of {baseline} in '{portrait.name}'; evaluate again")
    figure, axes = picture_axes(request.pyplot, portrait, 1, 4, extra=0.65)
    picture = show_image(axes[0, 0], portrait)
    figure.colorbar(picture, ax=axes[0, 0], location="bottom", pad=0.04, aspect=16).ax.set_visible(False)  # same height
    axes[0, 0].set_title(literal(portrait.name))
    titles = (f"confidence, {literal(baseline)}", "accuracy of the bin", "best temperature nearby")
    for axis, layer, title in zip(axes[0, 1:], (confidence, accuracy, optimum), titles, strict=True):
        drawn = show_map(axis, portrait, layer)
        axis.set_title(title)
        ends = [layer.low, 1, layer.high] if layer is optimum else [layer.low, (layer.low + 1) / 2, 1]
        show_scale(figure, drawn, ends, [f"{end:.3g}" for end in ends], ax=axis, location="bottom", pad=0.04, aspect=16)
    return figure


def draw_temperature(request: Request) -> Any:
    """Draw the image and the temperature map of each method that has one, on one scale; a volume's middle slice."""
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
        drawn = show_map(axis, portrait, layer)
        axis.set_title(f"{literal(method)} temperature")
    scale = next(iter(heats.values()))
    marks = np.geomspace(scale.low, scale.high, 5).tolist()
    show_scale(figure, drawn, marks, [f"{mark:.2g}" for mark in marks], ax=axes[0].tolist(), shrink=0.9, pad=0.02)
    return figure


def draw_illustration(request: Request) -> Any:
    """Draw image, labels, the pixels of Boundary, the pixels of All, and the Local patches on the image."""
    portrait = request.portrait()
    figure, axes = picture_axes(request.pyplot, portrait, 1, 5 if portrait.boxes else 4)
    show_image(axes[0, 0], portrait)
    show_labels(axes[0, 1], portrait)
    show_regions(axes[0, 2], portrait, (PixelRegion.BOUNDARY,))
    show_regions(axes[0, 3], portrait, (PixelRegion.ALL, PixelRegion.BOUNDARY))
    titles = [literal(portrait.name), "labels", "Boundary", "All, with Boundary"]
    if portrait.boxes:
        show_labels(axes[0, 4], portrait)
        draw_boxes(axes[0, 4], portrait, numbered=False)
        titles.append("Local patches")
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title)
    return figure


def draw_variation(request: Request) -> Any:
    """Draw image and labels of each portrayed case, with a metric of the first method in All."""
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
            title = metric_named(request.metric).title
            lower.set_xlabel(f"{title} {with_unit(request.metric, values[portrait.name])}")
    return figure
