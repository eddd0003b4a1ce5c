"""Tables that are measured only where they are asked for: segmentation quality, and what limits calibration."""

from __future__ import annotations

import pandas as pd
from rich.table import Table

from segcal.cli.console import OUT, say
from segcal.evaluation.limits import as_rows, verdict
from segcal.evaluation.results import Results
from segcal.functional.catalogue import SURFACES


def print_further(results: Results) -> None:
    """Print those that the results hold."""
    if results.surface_frame is not None:
        OUT.print(_surface_table(results))
    if results.limits_frame is not None:
        print_limits(results.limits_frame)


def print_limits(found: pd.DataFrame) -> None:
    """Print ECE and NLL of every level of an oracle, which pixels share a temperature at each, and what it means."""
    table = _table("What limits calibration")
    for heading, justify in (("oracle for", "left"), ("ECE, %", "right"), ("NLL", "right"), ("", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for level, text, ece, nll in as_rows(found):
        table.add_row(level, f"{100 * ece:.2f}", f"{nll:.4f}", text)
    OUT.print(table)
    say(verdict(found))


def _surface_table(results: Results) -> Table:
    found = results.mean_surfaces()
    table = _table("segmentation: mean(std) over cases of the mean over structures")
    table.add_column("method", no_wrap=True)
    for metric in SURFACES.values():
        table.add_column(metric.heading, justify="right", no_wrap=True)
    for method, rows in found.groupby("method", sort=False):
        means, spreads = (dict(zip(rows["metric"], rows[column], strict=True)) for column in ("mean", "std"))
        numbers = [f"{metric.number(means[name])}({metric.number(spreads[name])})" for name, metric in SURFACES.items()]
        table.add_row(str(method), *numbers)
    table.caption, table.caption_justify = "SD: surface Dice; ASD, 95MD, MD: average, 95 % and maximum distance", "left"
    if alone := int(found["undefined"].max()):
        table.caption += f"; {alone} structures are only in the prediction or only in the truth of a case: Dice 0"
    return table


def _table(title: str) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left")
