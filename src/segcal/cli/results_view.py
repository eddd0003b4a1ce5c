"""Results on the screen: the paper's table, figures over all pixels, warnings."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from segcal.cli.console import OUT, say, say_json, say_where, warn
from segcal.cli.options import ReferenceOptions
from segcal.evaluation.results import Results
from segcal.functional.catalogue import CATALOGUE
from segcal.regions import region_title
from segcal.tables import PaperTable
from segcal.tables.numbers import with_interval


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
    OUT.print(table)
    OUT.print(_pooled_table(results))
    if skipped := {name: count for name, count in results.skipped().items() if count}:
        counts = ", ".join(f"{count} {name}" for name, count in skipped.items())
        say(f"skipped (no pixels, or too few): {counts}", style="dim")
    say_where(out, page)


def _pooled_table(results: Results) -> Table:
    pooled = results.pooled()
    over = "groups of images" if results.cases().group.any() else "images"
    title = f"all pixels together, with 95 % bootstrap intervals over {over}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    shown = ("ece", "nll", "brier")
    for column in ("method", "region", *(CATALOGUE[metric].heading for metric in shown)):
        table.add_column(column, justify="left" if column in ("method", "region") else "right", no_wrap=True)
    for (method, region), rows in pooled.groupby(["method", "region"], sort=False):
        values = {row.metric: (row.value, row.low, row.high) for row in rows.itertuples()}
        numbers = [with_interval(metric, *values[metric]) for metric in shown]  # type: ignore[arg-type]
        table.add_row(str(method), region_title(str(region)), *numbers)
    return table
