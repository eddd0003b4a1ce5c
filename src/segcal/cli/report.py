"""`segcal report`: the page of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from segcal.cli.console import Answer, written_file
from segcal.cli.options import OUTPUT, ReferenceOptions, ResultsFolder, option


def report(
    results: ResultsFolder,
    reference_options: ReferenceOptions,
    out: Annotated[Path, option(OUTPUT, "HTML file to write.")],
    decisions: Annotated[Path | None, option(OUTPUT, "Folder that 'segcal decide' wrote, to show too.")] = None,
) -> Answer:
    """Write the page of an evaluation: one HTML file without external parts.

    Reference, test and average are those of the evaluation unless they are given.

    Example: segcal report results/ --out page.html
    """
    from segcal.cli.results_view import load_presented
    from segcal.evaluation.decisions import Decisions
    from segcal.evaluation.portraits import load_portraits
    from segcal.files import check_output_file
    from segcal.report import write_page

    check_output_file(out, (".html", ".htm"), results)
    rules = None if decisions is None else Decisions.load(decisions)
    write_page(load_presented(results, reference_options), out, load_portraits(results), rules)
    return written_file(out)
