"""Results on the screen: the paper's table, figures over all pixels, warnings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
from rich.table import Table

from segcal.cli.console import OUT, say, say_json, say_where, warn
from segcal.cli.further_tables import print_further
from segcal.cli.options import ReferenceOptions
from segcal.evaluation.results import Results
from segcal.functional.catalogue import CATALOGUE
from segcal.regions import region_title
from segcal.tables import PaperTable
from segcal.tables.numbers import with_interval
from segcal.text import counted

_SHOWN = ("ece", "nll", "brier")


def load_presented(folder: Path, options: ReferenceOptions) -> Results:
    """Load results with the reference, test and average saved with them, except for those given."""
    found = Results.load(folder)
    return found.presented(found.presentation.with_changes(options.reference, options.test, options.average))


def print_results(
    results: Results, table: PaperTable, out: Path | None, as_json: bool, page: Path | None = None
) -> None:
    """Print the paper's table and the pooled figures, or everything as JSON; warnings go to standard error."""
    for warning in results.settings["warnings"]:
        warn(warning)
    if as_json:
        say_json(results.to_dict())
        return
    OUT.print(replace(table, warnings=()))  # they are on standard error
    if results.channels:
        say(f"mean over {len(results.channels)} channels: {', '.join(results.channels)}", style="dim")
    OUT.print(_pooled_table(results))
    if results.channels:
        OUT.print(_channel_table(results))
    print_further(results)
    if skipped := {name: count for name, count in results.skipped().items() if count}:
        counts = ", ".join(_skipped(name, count) for name, count in skipped.items())
        say(f"skipped (no pixels, or too few): {counts}", style="dim")
    say_where(out, page)


def _skipped(name: str, count: int) -> str:
    """Return what was skipped: patches, or a region of some images."""
    if name == "patches":
        return counted(count, "patch", "patches")
    return f"{region_title(name)} of {counted(count, 'image')}"


def _pooled_table(results: Results) -> Table:
    over = "groups of images" if results.cases().group.any() else "images"
    table = _empty_table(f"all pixels together, with 95 % bootstrap intervals over {over}", ("method", "region"))
    for (method, region), rows in results.pooled().groupby(["method", "region"], sort=False):
        table.add_row(str(method), region_title(str(region)), *_numbers(rows))
    return table


def _channel_table(results: Results) -> Table:
    """Return the figures of each sigmoid channel in *All*."""
    table = _empty_table("each channel in All, all pixels together", ("channel", "method"))
    for channel, own in results.channels.items():
        pooled = own.pooled()
        for method, rows in pooled[pooled.region == "all"].groupby("method", sort=False):
            table.add_row(channel, str(method), *_numbers(rows))
    return table


def _empty_table(title: str, keys: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in (*keys, *(CATALOGUE[metric].heading for metric in _SHOWN)):
        table.add_column(column, justify="left" if column in keys else "right", overflow="fold")
    return table


def _numbers(rows: pd.DataFrame) -> list[str]:
    values = {row.metric: (row.value, row.low, row.high) for row in rows.itertuples()}
    return [with_interval(metric, *values[metric]) for metric in _SHOWN]  # type: ignore[arg-type]
