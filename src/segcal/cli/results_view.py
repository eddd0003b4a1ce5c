"""Results on the screen: the paper's table, figures over all pixels, warnings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from segcal.cli.console import OUT, say, say_json, say_where, warn
from segcal.evaluation.results import Results
from segcal.tables import PaperTable


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
        say(f"skipped (no pixels): {counts}", style="dim")
    say_where(out, page)


def _pooled_table(results: Results) -> Table:
    pooled = results.pooled()
    over = "groups of images" if results.cases().group.any() else "images"
    title = f"all pixels together, with 95 % bootstrap intervals over {over}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("method", "region", "ECE(%)", "NLL", "Brier"):
        table.add_column(column, justify="left" if column in ("method", "region") else "right", no_wrap=True)
    for (method, region), rows in pooled.groupby(["method", "region"], sort=False):
        by_metric = rows.set_index("metric")
        shown = [(by_metric.loc[metric], scale) for metric, scale in (("ece", 100), ("nll", 1), ("brier", 1))]
        table.add_row(str(method), str(region), *(_with_interval(row, scale) for row, scale in shown))
    return table


def _with_interval(row: Any, scale: int) -> str:
    digits = 2 if scale == 100 else 3
    value, low, high = (f"{scale * float(row[name]):.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"
