"""Static figures for papers, in matplotlib.

A figure is a module here with `draw(request)`. To add one, write the module and add a line to `FIGURES`, from which
`segcal figure` takes the name and the help.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from segcal.evaluation.portraits import Portrait
from segcal.evaluation.results import Results
from segcal.files import signed_file
from segcal.report.figures import (
    by_region,
    illustration,
    local,
    locations,
    patch_size,
    reliability,
    temperature,
    variation,
)
from segcal.report.figures.notebook import drawn, import_pyplot
from segcal.report.figures.request import Request
from segcal.report.figures.style import FORMATS, STYLE
from segcal.tables import named_method
from segcal.text import suggestion
from segcal.types import InputError


class Figure(NamedTuple):
    """How a figure is drawn, what it shows, and whether it needs portraits of cases."""

    draw: Callable[[Request], Any]
    shows: str
    portraits: bool = False


FIGURES: dict[str, Figure] = {
    "reliability": Figure(reliability.draw, "reliability diagrams over all images"),
    "local": Figure(local.draw, "global and local reliability diagrams of a case", portraits=True),
    "locations": Figure(locations.draw, "confidence, accuracy and best temperature by location", portraits=True),
    "temperature": Figure(temperature.draw, "temperature maps of a case", portraits=True),
    "illustration": Figure(illustration.draw, "the regions All, Boundary and Local of a case", portraits=True),
    "variation": Figure(variation.draw, "image and labels of several cases", portraits=True),
    "regions": Figure(by_region.draw, "a metric by region"),
    "patch-size": Figure(patch_size.draw, "a metric against the size of the patches"),
}
KINDS = tuple(FIGURES)


def write_figure(
    kind: str,
    results: Results,
    path: str | Path,
    *,
    portraits: Sequence[Portrait] = (),
    methods: Sequence[str] = (),
    metric: str = "ece",
    region: str | None = None,
    label: str = "",
    case: str | None = None,
) -> None:
    """Draw one figure of an evaluation into a PDF, PNG or SVG file, which appears whole or not at all.

    Args:
        kind: One of `KINDS`.
        results: Of the evaluation.
        path: The file; its suffix decides the format.
        portraits: Of the cases, for figures that show them.
        methods: Only these, in this order.
        metric: For figures of one metric.
        region: Of the reliability diagrams (All) and of the patch sizes (Local-Avg).
        label: Predicted class; "" for all pixels.
        case: Which portrait to show; by default the first.
    """
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise InputError(f"the name of a figure ends in {', '.join(FORMATS)}, got '{target.name}'")
    check_kind(kind)
    import_pyplot().switch_backend("Agg")  # files need no screen
    figure = draw_figure(
        kind, results, portraits=portraits, methods=methods, metric=metric, region=region, label=label, case=case
    )
    with signed_file(target) as staging, import_pyplot().rc_context(STYLE):
        figure.savefig(staging, format=target.suffix[1:].lower())


def draw_figure(
    kind: str,
    results: Results,
    *,
    portraits: Sequence[Portrait] = (),
    methods: Sequence[str] = (),
    metric: str = "ece",
    region: str | None = None,
    label: str = "",
    case: str | None = None,
) -> Any:
    """Return one figure of an evaluation as a matplotlib Figure; arguments as in `write_figure`."""
    check_kind(kind)
    chosen = tuple(named_method(method, results.methods, "each method") for method in methods) or results.methods
    return drawn(
        lambda pyplot: FIGURES[kind].draw(Request(pyplot, results, portraits, chosen, metric, region, label, case))
    )


def check_kind(kind: str) -> None:
    """Raise unless there is such a figure."""
    if kind not in FIGURES:
        raise InputError(f"a figure is one of {', '.join(KINDS)}, got '{kind}'{suggestion(kind, KINDS)}")
