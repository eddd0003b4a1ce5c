"""Segmentation quality of the methods as a table: mean(std) over cases of the mean over structures."""

from __future__ import annotations

import pandas as pd

from segcal.functional.catalogue import SURFACES
from segcal.tables.further import FurtherTable
from segcal.tables.paper import Cell

_TITLE = "Segmentation: mean(std) over cases of the mean over structures"
_NOTE = "SD: surface Dice; ASD, 95MD, MD: average, 95 % and maximum distance"


def surface_table(means: pd.DataFrame) -> FurtherTable:
    """Return the table of means with the columns `method metric mean std undefined`."""
    cells = {(row.method, row.metric): Cell(row.metric, row.mean, row.std) for row in means.itertuples()}  # type: ignore[arg-type]
    methods = dict.fromkeys(str(method) for method in means["method"])
    rows = {method: tuple(cells[method, metric].number() for metric in SURFACES) for method in methods}
    headings = [metric.heading for metric in SURFACES.values()]
    return FurtherTable(_TITLE, "Method", headings, rows, _NOTE + _alone(int(means["undefined"].max())))


def _alone(structures: int) -> str:
    """Return what to say of structures of cases that have no distance.

    >>> _alone(1)
    '; 1 structure is only in the prediction or only in the truth of a case: Dice 0'
    """
    if not structures:
        return ""
    many = "1 structure is" if structures == 1 else f"{structures} structures are"
    return f"; {many} only in the prediction or only in the truth of a case: Dice 0"
