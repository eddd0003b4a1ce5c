"""Static figures for papers, in matplotlib.

A figure is a function of a `Request`. To add one, write it and add a line to `FIGURES`, which `segcal figure`
offers by name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

from segcal.evaluation.results import Results
from segcal.files import signed_file
from segcal.report.figures import cases, metrics, reliability
from segcal.report.figures.drawing import FORMATS, STYLE, FigureOptions, Request, drawn, import_pyplot
from segcal.tables import named_method
from segcal.text import suggestion
from segcal.types import InputError

FIGURES: dict[str, Callable[[Request], Any]] = {
    "reliability": reliability.draw_reliability,
    "local": cases.draw_local,
    "locations": cases.draw_locations,
    "temperature": cases.draw_temperature,
    "illustration": cases.draw_illustration,
    "variation": cases.draw_variation,
    "regions": metrics.draw_regions,
    "patch-size": metrics.draw_patch_sizes,
}
KINDS = tuple(FIGURES)
_UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # the same figure is the same bytes


def write_figure(kind: str, results: Results, path: str | Path, **selection: Unpack[FigureOptions]) -> None:
    """Draw one figure of an evaluation into a PDF, PNG or SVG file, which appears whole or not at all.

    Args:
        kind: One of `KINDS`.
        results: Of the evaluation.
        path: The file; its suffix decides the format.
        selection: What to draw; see `segcal.report.figures.drawing.Request`.
    """
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise InputError(f"the name of a figure ends in {', '.join(FORMATS)}, got '{target.name}'")
    import_pyplot().switch_backend("Agg")  # files need no screen
    figure = draw_figure(kind, results, **selection)
    with signed_file(target) as staging, import_pyplot().rc_context(STYLE):
        suffix = target.suffix[1:].lower()
        figure.savefig(staging, format=suffix, metadata=_UNDATED.get(suffix))


def draw_figure(kind: str, results: Results, **selection: Unpack[FigureOptions]) -> Any:
    """Return one figure of an evaluation as a matplotlib Figure; arguments as in `write_figure`."""
    if kind not in FIGURES:
        raise InputError(f"a figure is one of {', '.join(KINDS)}, got '{kind}'{suggestion(kind, KINDS)}")
    named = (named_method(method, results.methods, "each method") for method in selection.get("methods", ()))
    chosen: FigureOptions = {**selection, "methods": tuple(named) or results.methods}
    return drawn(lambda pyplot: FIGURES[kind](Request(pyplot, results, **chosen)))
