"""The table of the segmentation quality."""

from __future__ import annotations

import pandas as pd

from segcal.functional.catalogue import SURFACES
from segcal.tables.paper import Cell
from segcal.tables.text_table import TextTable

_NOTE = (
    "ASD, MD: average and maximum distance; 95MD: 95 % of the distances of both directions together; HD95: of the "
    "larger direction"
)


def surface_table(
    means: pd.DataFrame, unit: str, tolerance: float, background: str = "", method: str | None = None
) -> TextTable:
    """Return the table of means whose columns are the name of the row, `metric`, `mean`, `std` and `undefined`.

    Args:
        means: The figures.
        unit: Unit of the distances; "" if it is not known.
        tolerance: Of the surface Dice, in that unit.
        background: Name of the class that is left out; "" for none.
        method: The method that the means are of, if the rows are structures.
    """
    rows = dict[str, list[str]]()
    for name, *row in means[[means.columns[0], "metric", "mean", "std"]].itertuples(index=False):
        rows.setdefault(str(name), []).append(Cell(*row).number())
    note = f"SD: {_surface_dice(unit, tolerance)}; {_NOTE}{_alone(int(means['undefined'].max()))}."
    without = f", without the background '{background}'" if background else ""
    over, first = ("of the mean over structures", "Method") if method is None else (f"of {method}", "Structure")
    title = f"Segmentation: mean(std) over cases {over}{without}"
    written = [(name, *cells) for name, cells in rows.items()]
    return TextTable((first, *surface_headings(unit)), written, title, note)


def surface_headings(unit: str) -> list[str]:
    """Return the headings of the figures; only distances have the unit.

    Examples:
        >>> surface_headings("pixels")[:3], surface_headings("")[2]
        (['Dice(%)↑', 'SD(%)↑', 'ASD(pixels)↓'], 'ASD↓')
    """
    return [metric.heading.replace("(mm)", f"({unit})" if unit else "") for metric in SURFACES.values()]


def _surface_dice(unit: str, tolerance: float) -> str:
    """Return what the surface Dice is; it means nothing without its tolerance.

    Examples:
        >>> _surface_dice("mm", 1.0), _surface_dice("pixels", 1.0)
        ('surface Dice at a tolerance of 1 mm', 'surface Dice at a tolerance of 1 pixel')
    """
    own = unit.removesuffix("s") if tolerance == 1 else unit
    return f"surface Dice at a tolerance of {tolerance:g} {own}".rstrip()


def _alone(structures: int) -> str:
    """Return what to say of structures of cases that have no distance.

    Examples:
        >>> _alone(1)
        '; 1 structure is only in the prediction or only in the truth of a case: Dice 0'
    """
    if not structures:
        return ""
    many = "1 structure is" if structures == 1 else f"{structures} structures are"
    return f"; {many} only in the prediction or only in the truth of a case: Dice 0"
