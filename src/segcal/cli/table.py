"""`segcal table`: show saved results again, or write them as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from segcal.cli.console import say_json, say_where, warn
from segcal.cli.options import OUTPUT, AsJson, ReferenceOptions, ResultsFolder, option


def table(
    results: ResultsFolder,
    reference_options: ReferenceOptions,
    out: Annotated[
        Path | None, option(OUTPUT, "File: .tex or .md (tables), .csv or .parquet (images), .json (all).")
    ] = None,
    floor: Annotated[bool, option(OUTPUT, "Show the floors, if they were measured.", "--floor")] = False,
    as_json: AsJson = False,
) -> None:
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
    if as_json:
        say_json(found.to_dict())
        return
    print_all(found, shown)
    say_where(out)
