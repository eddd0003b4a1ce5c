"""Tables that are measured only where they are asked for: segmentation quality, and what limits calibration."""

from __future__ import annotations

import pandas as pd
from rich.table import Table

from segcal.cli.console import OUT, say
from segcal.evaluation.limits import as_rows, verdict
from segcal.evaluation.results import Results
from segcal.tables.surfaces import TITLE, surface_table


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
    found = surface_table(results.mean_surfaces())
    table = _table(TITLE)
    table.add_column("method", no_wrap=True)
    for heading in found.headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for method, cells in found.rows.items():
        table.add_row(method, *cells)
    table.caption, table.caption_justify = found.note(), "left"
    return table


def _table(title: str) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left")
