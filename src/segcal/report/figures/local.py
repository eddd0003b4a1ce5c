"""Global and local reliability diagrams of a case (the paper's Fig. 2)."""

from __future__ import annotations

from typing import Any

from segcal.evaluation.portraits import Portrait
from segcal.report.figures.diagram import Bins, diagram, histogram
from segcal.report.figures.panels import draw_boxes, show_image, show_labels, show_map
from segcal.report.figures.request import Request
from segcal.report.figures.style import bare, literal
from segcal.tables.numbers import with_unit
from segcal.types import InputError


def draw(request: Request) -> Any:
    """A row for the whole case and one for each of three patches; for each method, a histogram beside its diagram.

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
        show_map(axes[1], portrait, layer, cmap="viridis", vmin=layer.low, vmax=1)
        axes[1].set_title(f"confidence, {literal(request.results.baseline)}")
    if len(axes) > 2:
        show_labels(axes[2], portrait, "prediction")
        axes[2].set_title("prediction")
    if len(axes) > 3:
        show_labels(axes[3], portrait)
        axes[3].set_title("labels")
