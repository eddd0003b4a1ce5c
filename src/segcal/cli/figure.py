"""`segcal figure`: figures for papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from segcal.cli.console import Answer, written_file
from segcal.cli.options import OUTPUT, ResultsFolder, option

_KINDS = ("reliability", "local", "locations", "temperature", "illustration", "variation", "regions", "patch-size")
"""Those of `segcal.report.figures`, which takes long to import."""


def figure(
    kind: Annotated[str, typer.Argument(help=f"One of {', '.join(_KINDS)}.")],
    results: ResultsFolder,
    out: Annotated[Path, option(OUTPUT, "File to write: .pdf, .png or .svg.")],
    methods: Annotated[list[str] | None, typer.Option(help="Only these methods, in this order.")] = None,
    metric: Annotated[str, typer.Option(help="regions, patch-size: the metric.")] = "ece",
    region: Annotated[str | None, typer.Option(help="reliability: all, boundary; patch-size: local-avg.")] = None,
    label: Annotated[str, typer.Option("--class", help="reliability: only pixels predicted as this class.")] = "",
    case: Annotated[str | None, typer.Option(help="temperature: the case, one of those shown on the page.")] = None,
) -> Answer:
    """Draw a figure for a paper, such as reliability diagrams or temperature maps.

    Example: segcal figure reliability results/ --out reliability.pdf
    """
    from segcal.evaluation.portraits import load_portraits
    from segcal.evaluation.results import Results
    from segcal.files import check_output_file
    from segcal.report.figures import write_figure

    check_output_file(out, (), results)
    found = Results.load(results)
    write_figure(
        kind,
        found,
        out,
        portraits=load_portraits(results),
        methods=methods or (),
        metric=metric,
        region=region,
        label=label,
        case=case,
    )
    return written_file(out)
