"""Results of a command: saved, and shown on the screen with warnings and the recommendation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from segcal.calibrators import Calibrator
from segcal.cli.console import OUT, Answer, say, say_where, warn
from segcal.cli.options import OutputOptions, ReferenceOptions
from segcal.data.folders.folder import Folder
from segcal.evaluation.compare import Comparison
from segcal.evaluation.limits import limits_table
from segcal.evaluation.portraits import choose_cases, make_portraits, save_portraits
from segcal.evaluation.recommendation import recommend
from segcal.evaluation.results import Results
from segcal.files import staged_folder
from segcal.functional.catalogue import CATALOGUE
from segcal.progress import Tracked, progress_of
from segcal.regions import region_title
from segcal.report import write_page
from segcal.tables import PaperTable, TextTable
from segcal.tables.numbers import with_interval
from segcal.text import counted

_SHOWN = ("ece", "nll")
_MOST_STRUCTURES = 20
"""Rows of the table of classes in the summary."""
_POOLED = ("ece", "nll", "brier")
_HEADINGS = tuple(CATALOGUE[metric].heading for metric in _POOLED)


def load_presented(folder: Path, options: ReferenceOptions) -> Results:
    """Load results with the reference, test and average saved with them, except for those given."""
    found = Results.load(folder)
    return found.presented(found.presentation.with_changes(**vars(options)))


def save_results(
    found: Results | Comparison, folder: Folder, calibrators: Mapping[str, Calibrator | None], options: OutputOptions
) -> None:
    """Save results with portraits of the chosen cases, and write their page, where either is wanted."""
    if options.out is None and options.page is None:
        return
    results = found.results if isinstance(found, Comparison) else found
    cases = options.cases or ()
    chosen = folder.subset(choose_cases(results, cases))
    with progress_of("drawing cases") as progress:
        portraits = make_portraits(Tracked(chosen, progress), calibrators, results, cases)
    if options.out is not None:
        with staged_folder(options.out) as folder_out:  # rows and portraits appear together
            found.save(folder_out)
            save_portraits(portraits, folder_out)
    if options.page is not None:
        write_page(results, options.page, portraits)


def answer_of(
    results: Results,
    options: OutputOptions,
    *,
    floor: bool,
    warnings: Iterable[str] = (),
    further: Mapping[str, Any] | None = None,
    below: TextTable | None = None,
) -> Answer:
    """Print warnings; return ECE and NLL by region, the recommendation, and where the rest is; as JSON, everything.

    Args:
        results: What was measured.
        options: Options of the output.
        floor: Whether to show the scores of perfect calibration.
        warnings: Further warnings.
        further: Further entries of the JSON.
        below: Table shown below the others.
    """
    for warning in (*results.settings["warnings"], *warnings):
        warn(warning)

    recommended = recommend(results)
    compared = {"recommendation": recommended.to_dict()} if len(results.methods) > 1 else {}

    def show() -> None:
        _print_paper(results, results.table(floor=floor).only(*_SHOWN))
        _print_further(results, [*dict.fromkeys((results.baseline, recommended.method))], _MOST_STRUCTURES)
        if below is not None:
            OUT.print(below)
        if compared:
            say(str(recommended))
        say_where(options.out, options.page)
        if options.out is not None:
            say(f"all metrics: segcal table {options.out}", style="dim", soft_wrap=True)
        elif options.page is None:
            rest = "all metrics: save them with --out FOLDER, show them with --page FILE, or print them with --json"
            say(rest, style="dim")

    return Answer(lambda: {**results.to_dict(), **compared, **(further or {})}, show)


def print_all(results: Results, table: PaperTable, out: Path | None) -> None:
    """Print every metric, also over all pixels together and for each channel, and where the table was written."""
    _print_paper(results, table)
    OUT.print("", _pooled_table(results))
    if results.channels:
        OUT.print("", _channel_table(results))
    _print_further(results, results.methods)
    say_where(out)


def _print_paper(results: Results, table: PaperTable) -> None:
    OUT.print(replace(table, warnings=()))  # they are on standard error
    if results.channels:
        say(f"mean over {len(results.channels)} channels: {', '.join(results.channels)}", style="dim")


def _print_further(results: Results, methods: Sequence[str], most: int | None = None) -> None:
    """Print the classes or channels of some methods, at most so many, and what was measured besides."""
    table = results.structure_table(methods)
    rows = table.rows[:most]
    more = f" {len(table.rows) - len(rows)} more in segcal table." if len(rows) < len(table.rows) else ""
    OUT.print("", replace(table, rows=rows, note=f"{table.note}{more}"))
    if results.surface_frame is not None:
        OUT.print("", results.surface_table())
    if results.limits_frame is not None:
        OUT.print("", limits_table(results.limits_frame))
    if skipped := [_skipped(name, count) for name, count in results.skipped().items() if count]:
        say(f"skipped (no pixels, or too few): {', '.join(skipped)}", style="dim")


def _skipped(name: str, count: int) -> str:
    """Return what was skipped: patches, or a region of some images."""
    if name == "patches":
        return counted(count, "patch", "patches")
    return f"{region_title(name)} of {counted(count, 'image')}"


def _pooled_table(results: Results) -> TextTable:
    over = "groups of images" if results.cases().group.any() else "images"
    groups = results.pooled().groupby(["method", "region"], sort=False)
    rows = [(str(method), region_title(str(region)), *_numbers(own)) for (method, region), own in groups]
    title = f"All pixels together, with 95 % bootstrap intervals over {over}"
    return TextTable(("Method", "Region", *_HEADINGS), rows, keys=2, title=title)


def _channel_table(results: Results) -> TextTable:
    """Return the metrics of each sigmoid channel in *All*."""
    rows = [
        (channel, str(method), *_numbers(rows))
        for channel, own in results.channels.items()
        for method, rows in own.pooled().query("region == 'all'").groupby("method", sort=False)
    ]
    title = "Each channel in All, all pixels together"
    return TextTable(("Channel", "Method", *_HEADINGS), rows, keys=2, title=title)


def _numbers(rows: pd.DataFrame) -> list[str]:
    values = rows.set_index("metric")[["value", "low", "high"]]
    return [with_interval(metric, *values.loc[metric]) for metric in _POOLED]
