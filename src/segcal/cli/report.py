"""The commands that show results: the page, and figures for papers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import filesize

from segcal.calibrators import Calibrator
from segcal.cli.console import OUT, ManyValues, Tracked, progress_of
from segcal.cli.options import AverageOver, Reference, SignificanceTest
from segcal.data.folders.folder import Folder
from segcal.evaluation.compare import Comparison
from segcal.evaluation.portraits import choose_cases, load_portraits, portray, save_portraits
from segcal.evaluation.results import Results
from segcal.files import refuse_foreign
from segcal.report import write_page
from segcal.report.figures import FIGURES, write_figure
from segcal.types import InputError

ResultsFolder = Annotated[Path, typer.Argument(help="Folder that 'segcal evaluate' or 'segcal compare' wrote.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the others."""
    app.command("report", cls=ManyValues)(report)
    app.command("figure", cls=ManyValues)(figure)


def report(
    results: ResultsFolder,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")],
    reference: Reference = None,
    test: SignificanceTest = None,
    average: AverageOver = None,
    as_json: AsJson = False,
) -> None:
    """Write the page of an evaluation: one HTML file that opens in any browser and loads nothing from elsewhere.

    Reference, test and average are those of the evaluation where they are not given.

    Example: segcal report results/ --out page.html
    """
    write_page(load_presented(results, reference, test, average), out, load_portraits(results))
    _say_written(out, as_json)


def figure(
    kind: Annotated[str, typer.Argument(help="; ".join(f"{name}: {figure.shows}" for name, figure in FIGURES.items()))],
    results: ResultsFolder,
    out: Annotated[Path, typer.Option(help="The file to write: .pdf, .png or .svg.")],
    methods: Annotated[list[str] | None, typer.Option(help="Only these methods, in this order.")] = None,
    metric: Annotated[str, typer.Option(help="regions, patch-size, variation: which metric.")] = "ece",
    region: Annotated[str | None, typer.Option(help="reliability: all, boundary; patch-size: local-avg.")] = None,
    label: Annotated[str, typer.Option("--class", help="reliability: only pixels predicted as this class.")] = "",
    case: Annotated[str | None, typer.Option(help="Figures of one case: which of the portrayed ones.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw a figure for a paper: reliability diagrams, maps of a case, errors by region or by patch size.

    Example: segcal figure reliability results/ --out reliability.pdf
    """
    found = Results.load(results)
    portraits = load_portraits(results) if kind in FIGURES and FIGURES[kind].portraits else ()
    write_figure(
        kind,
        found,
        out,
        portraits=portraits,
        methods=methods or (),
        metric=metric,
        region=region,
        label=label,
        case=case,
    )
    _say_written(out, as_json)


def load_presented(folder: Path, reference: str | None, test: str | None, average: str | None) -> Results:
    """Load results with the choice of reference, test and average saved with them, except for what is given."""
    found = Results.load(folder)
    return found.presented(found.presentation.with_changes(reference, test, average))


def check(folder: Folder, out: Path | None, page: Path | None, cases: Sequence[str]) -> None:
    """Raise now, rather than after measuring, if folder or page could not be written or a case is not there."""
    if out is not None:
        refuse_foreign(out)
    if page is not None and page.is_dir():
        raise InputError(f"'{page}' is a folder, and a file is to be written there; choose another name")
    for name in cases:
        folder.find(name)


def keep(
    found: Results | Comparison,
    folder: Folder,
    calibrators: Mapping[str, Calibrator | None],
    *,
    out: Path | None,
    page: Path | None,
    cases: Sequence[str],
) -> None:
    """Save what was found with portraits of the chosen cases, and write the page of it, where either is wanted."""
    if out is None and page is None:
        return
    results = found.results if isinstance(found, Comparison) else found
    chosen = folder.subset(choose_cases(results, cases))
    with progress_of("portraying") as progress:
        portraits = portray(Tracked(chosen, progress), calibrators, results, cases)
    if out is not None:
        found.save(out)
        save_portraits(portraits, out)
    if page is not None:
        write_page(results, page, portraits)


def _say_written(out: Path, as_json: bool) -> None:
    size = out.stat().st_size
    if as_json:
        typer.echo(json.dumps({"out": str(out), "bytes": size}))
    else:
        OUT.print(f"written to {out} ({filesize.decimal(size)})", highlight=False)
