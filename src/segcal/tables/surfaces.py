"""Segmentation quality of the methods as a table: mean(std) over cases of the mean over structures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from segcal.functional.catalogue import SURFACES
from segcal.tables.paper import Cell

TITLE = "Segmentation: mean(std) over cases of the mean over structures"


@dataclass(frozen=True)
class SurfaceTable:
    """Entries that terminal, LaTeX and Markdown show.

    Attributes:
        rows: The entries of each method, in the order of the headings.
        undefined: Structures of cases that have no distance.
    """

    rows: Mapping[str, tuple[Cell, ...]]
    undefined: int

    @property
    def headings(self) -> list[str]:
        """Headings of the entries, with unit and direction."""
        return [metric.heading for metric in SURFACES.values()]

    def note(self) -> str:
        """Return what the headings mean, and which structures have no distance."""
        note = "SD: surface Dice; ASD, 95MD, MD: average, 95 % and maximum distance"
        if not self.undefined:
            return note
        return f"{note}; {self.undefined} structures are only in the prediction or only in the truth of a case: Dice 0"


def surface_table(means: pd.DataFrame) -> SurfaceTable:
    """Return the table of means with the columns `method metric mean std undefined`."""
    cells = {(row.method, row.metric): Cell(row.metric, row.mean, row.std) for row in means.itertuples()}  # type: ignore[arg-type]
    methods = dict.fromkeys(str(method) for method in means["method"])
    rows = {method: tuple(cells[method, metric] for metric in SURFACES) for method in methods}
    return SurfaceTable(rows, int(means["undefined"].max()))
