"""`segcal merge`: join what the parts of a run have found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from segcal.cli.options import OUTPUT, AsJson


def merge(
    parts: Annotated[list[Path], typer.Argument(help="Folder, or folders, that a command with --part wrote.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write the joined output in.", rich_help_panel=OUTPUT)
    ] = None,
    page: Annotated[Path | None, typer.Option(help="HTML file to show the results in.", rich_help_panel=OUTPUT)] = None,
    as_json: AsJson = False,
) -> None:
    """Join the parts of 'apply', 'evaluate', 'compare' or 'diagnose' to what one run would have written and printed.

    The data and calibrators of the run must still be where they were. The parts remain; delete them when you like.

    Example: segcal merge parts/ --out results/
    """
    from segcal.cli.sharing import decoded, merging
    from segcal.files import refuse_overwriting
    from segcal.parts.work import Run
    from segcal.types import InputError

    refuse_overwriting(out, *parts)
    refuse_overwriting(page, *parts)
    run = Run.read(parts[0])
    command, arguments = decoded(run.command, run.arguments)
    if page is not None and "page_options" not in arguments:
        raise InputError(f"'segcal {run.command}' has no page; leave out --page")
    if "page_options" in arguments:
        page = page or arguments["page_options"].page
        arguments["page_options"] = replace(arguments["page_options"], out=out, page=page)
    elif "out" in arguments and run.command != "diagnose" and out is None:
        raise InputError("--out must name the folder of the joined output; give it")
    else:
        arguments["out"] = out
    with merging(parts):
        command(**{**arguments, "part": None, "as_json": as_json})
