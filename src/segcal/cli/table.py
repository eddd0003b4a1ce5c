"""`segcal table`: show saved results again, or write them as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from segcal.cli.options import OUTPUT, AsJson, ReferenceOptions, ResultsFolder


def table(
    results: ResultsFolder,
    reference_options: ReferenceOptions,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write: .tex or .md for the tables, .csv or .parquet for the rows of images, .json for all.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    floor: Annotated[bool, typer.Option("--floor", help="Show the floors, if they were measured.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show all metrics of saved results, or write them as one file.

    Example: segcal table results/ --reference LTS --out table.tex
    """
    from segcal.cli.results_view import load_presented, print_results
    from segcal.files import check_output_file

    check_output_file(out, (), results)
    found = load_presented(results, reference_options)
    shown = found.table(floor=floor)
    if out is not None:
        found.export(out, floor=floor)
    print_results(found, shown, out, as_json)
