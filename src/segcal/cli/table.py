"""`segcal table`: show saved results again, or write them as one file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from segcal.cli.console import Answer, warn
from segcal.cli.options import OUTPUT, ReferenceOptions, ResultsFolder, option


def table(
    results: ResultsFolder,
    reference_options: ReferenceOptions,
    out: Annotated[
        Path | None, option(OUTPUT, "File: .tex or .md (tables), .csv or .parquet (images), .json (all).")
    ] = None,
    floor: Annotated[bool, option(OUTPUT, "Show the floors, if they were measured.", "--floor")] = False,
) -> Answer:
    """Show all metrics of saved results, or write them as one file.

    Example: segcal table results/ --reference LTS --out table.tex
    """
    from segcal.cli.results_view import load_presented, print_all
    from segcal.files import check_output_file

    check_output_file(out, (), results)
    found = load_presented(results, reference_options)
    shown = found.table(floor=floor)
    if out is not None:
        found.export(out, floor=floor)
    for warning in found.settings["warnings"]:
        warn(warning)
    return Answer(found.to_dict, partial(print_all, found, shown, out))
