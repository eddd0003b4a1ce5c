"""`segcal report`: the page of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from segcal.cli.console import say_file
from segcal.cli.options import OUTPUT, AsJson, ResultsFolder


def report(
    results: ResultsFolder,
    out: Annotated[Path, typer.Option(help="The HTML file to write.", rich_help_panel=OUTPUT)],
    as_json: AsJson = False,
) -> None:
    """Write the page of an evaluation: one HTML file that opens in any browser and loads nothing from elsewhere.

    Example: segcal report results/ --out page.html
    """
    from segcal.files import check_output_file
    from segcal.report import write_page_of_folder

    check_output_file(out, (".html", ".htm"), results)
    write_page_of_folder(results, out)
    say_file(out, as_json)
