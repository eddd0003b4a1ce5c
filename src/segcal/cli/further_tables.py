"""Tables that are measured only where they are asked for: segmentation quality, and what limits calibration."""

from __future__ import annotations

import pandas as pd
from rich.table import Table

from segcal.cli.console import OUT, say
from segcal.evaluation.limits import limits_table
from segcal.evaluation.results import Results
from segcal.tables import FurtherTable


def print_further(results: Results) -> None:
    """Print those that the results hold."""
    if results.surface_frame is not None:
        found = results.surface_table()
        shown = _table(found)
        shown.caption, shown.caption_justify = found.note, "left"
        OUT.print(shown)
    if results.limits_frame is not None:
        print_limits(results.limits_frame)


def print_limits(frame: pd.DataFrame) -> None:
    """Print ECE and NLL of every level of an oracle, which pixels share a temperature at each, and what it means."""
    found = limits_table(frame)
    OUT.print(_table(found))
    say(f"{found.note}.")


def _table(found: FurtherTable) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title=found.title, title_justify="left")
    table.add_column(found.first.lower(), overflow="fold")
    for heading in found.headings:
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    for name, entries in found.rows.items():
        table.add_row(name, *entries)
    return table
