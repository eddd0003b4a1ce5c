"""Tables of the structures: ECE, volume and segmentation quality of each class, and the quality of each method."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from segcal.functional.catalogue import CATALOGUE, SURFACES
from segcal.tables.numbers import MISSING, number
from segcal.tables.paper import Cell
from segcal.tables.text_table import TextTable
from segcal.text import counted

_SHOWN = ("dice", "asd")  # beside the ECE of each class
_NOTE = (
    "ASD, MD: average and maximum distance; 95MD: 95 % of the distances of both directions together; HD95: of the "
    "larger direction"
)


def structure_table(
    curves: pd.DataFrame,
    volumes: pd.DataFrame,
    surfaces: pd.DataFrame | None,
    methods: Sequence[str],
    *,
    unit: str = "",
    channels: bool = False,
) -> TextTable:
    """Return the table, with a row for each class or channel.

    Methods that keep every label share one column of Dice and one of distances.

    Args:
        curves: Reliability diagrams with the columns of `Results.curves`.
        volumes: Errors of volumes with the columns of `Results.volume_bias`.
        surfaces: Segmentation quality with the columns of `Results.surfaces`; None where it was not measured.
        methods: Methods that are shown.
        unit: Unit of distances.
        channels: Whether the labels are sigmoid channels, which are measured over all of their pixels.
    """
    columns = dict[str, dict[str, str]]()
    for method in methods:
        errors = class_errors(curves, method)
        columns[f"{method} {CATALOGUE['ece'].heading}"] = {name: number("ece", error) for name, error in errors.items()}
    for method in methods:
        own = volumes[volumes.method == method]
        entries = zip(own["label"], own["bias"], strict=True)
        columns[f"{method} volume(%)"] = {
            str(name): f"{100 * bias:+.1f}" for name, bias in entries if not math.isnan(bias)
        }
    notes = ["ECE: in All, of the pixels predicted as the class" if not channels else "ECE: of the channel in All"]
    notes.append("volume: sum of the probabilities against the number of labelled pixels, minus 1")
    if surfaces is None:
        notes.append("Dice and distances: evaluate with --surfaces (surfaces=True)")
    else:
        columns |= _quality_columns(surfaces, methods, unit)
        notes.append("Dice, ASD: means over cases")
    names = dict.fromkeys(name for entries in columns.values() for name in entries)
    rows = [(name, *(entries.get(name, MISSING) for entries in columns.values())) for name in names]
    title = f"{'Channels' if channels else 'Classes'}, all pixels together"
    return TextTable(("Channel" if channels else "Class", *columns), rows, title, f"{'; '.join(notes)}.")


def class_errors(curves: pd.DataFrame, method: str) -> dict[str, float]:
    """Return the ECE in *All* of the pixels predicted as each class, over all cases."""
    rows = curves[(curves.method == method) & (curves.region == "all") & (curves.label != "")]
    gaps = (rows["hit"] - rows["confidence"]).abs().groupby(rows["label"], sort=False).sum()
    pixels = rows["count"].groupby(rows["label"], sort=False).sum()
    return {str(name): float(gaps[name] / pixels[name]) for name in gaps.index if pixels[name]}


def _quality_columns(surfaces: pd.DataFrame, methods: Sequence[str], unit: str) -> dict[str, dict[str, str]]:
    """Return a column of Dice and ASD for each segmentation; methods with the same one share it."""
    headings = dict(zip(("dice", "surface-dice", "asd"), surface_headings(unit), strict=False))
    found = dict[str, dict[str, str]]()
    for metric in _SHOWN:
        rows = surfaces[surfaces.metric == metric]
        means = rows.pivot_table(index="label", columns="method", values="value", sort=False, dropna=False)
        means = means.reindex(columns=list(methods))  # without a column where no class has a value
        texts = {
            method: {str(name): number(metric, value) for name, value in means[method].items()} for method in methods
        }
        same = all(own == texts[methods[0]] for own in texts.values())
        for method in methods[:1] if same else methods:
            found[headings[metric] if same else f"{method} {headings[metric]}"] = texts[method]
    return found


def mean_quality(frame: pd.DataFrame, column: str, names: Sequence[str]) -> pd.DataFrame:
    """Return the mean of each metric: `method` or `label` (the column of the names), `metric mean std cases undefined`.

    The mean over the structures of a case is taken first, then that over cases, with their standard deviation. A
    structure that only the prediction or only the truth has counts with a Dice of 0; it has no distance, and
    `undefined` counts such pairs of case and structure.
    """
    every = pd.MultiIndex.from_product([names, SURFACES], names=[column, "metric"])
    by_case = frame.groupby([column, "metric", "case"], sort=False)["value"].mean().groupby(level=[0, 1])
    found = pd.DataFrame({"mean": by_case.mean(), "std": by_case.std(ddof=0), "cases": by_case.count()})
    found["undefined"] = frame["value"].isna().groupby([frame[column], frame["metric"]]).sum()
    return (
        found.reindex(every).fillna({"cases": 0, "undefined": 0}).astype({"cases": int, "undefined": int}).reset_index()
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
    alone = int(means["undefined"].max())  # structures of cases that have no distance
    many = f"{counted(alone, 'structure')} {'is' if alone == 1 else 'are'}"
    only = f"; {many} only in the prediction or only in the truth of a case: Dice 0"
    own = unit.removesuffix("s") if tolerance == 1 else unit
    dice = f"surface Dice at a tolerance of {tolerance:g} {own}".rstrip()
    note = f"SD: {dice}; {_NOTE}{only if alone else ''}."
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
