"""Input of every section of the page: readings of the results, and the plain values that several sections share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, get_args

import pandas as pd

from segcal.evaluation.decisions import Decisions
from segcal.evaluation.portraits import Portrait
from segcal.evaluation.recommendation import Recommendation, ScoreDifference, difference, recommend
from segcal.evaluation.results import Results
from segcal.functional.catalogue import metric_named
from segcal.regions import region_title
from segcal.report.colours import REGIONS, method_colours
from segcal.tables import CALIBRATION, QUALITY, Average, Cell
from segcal.tables.numbers import with_interval, with_unit

_DIGITS = 8

KEYS = ("method", "region", "metric")


class Value(NamedTuple):
    """An average of a metric, its 95 % interval, and what a perfectly calibrated method would score; NaN if unknown."""

    metric: str
    value: float
    low: float
    high: float
    floor: float = math.nan

    def __str__(self) -> str:
        return with_interval(self.metric, self.value, self.low, self.high, unit=True)

    @property
    def short(self) -> str:
        """Without the interval."""
        return with_unit(self.metric, self.value)


@dataclass(frozen=True)
class View:
    """Results with their readings, averaged as their presentation says; portraits of some cases, and decisions."""

    results: Results
    portraits: Sequence[Portrait] = ()
    decisions: Decisions | None = None

    @property
    def class_names(self) -> list[str]:
        """One name per class."""
        settings = self.results.settings
        return [str(name) for name in settings.get("class_names") or range(settings["num_classes"])]

    @cached_property
    def cases(self) -> list[str]:
        """The cases in order."""
        return [str(name) for name in self.results.cases()["case"]]

    @property
    def units(self) -> str:
        """Unit that the bootstrap draws."""
        return "groups of images" if (self.results.cases()["group"] != "").any() else "images"

    @property
    def average(self) -> str:
        """Words for what the metrics in *All* are averaged over."""
        images = len(self.cases)
        if images == 1:
            return "1 image"
        return f"all pixels of {images} images" if self._pooled else f"mean over {images} images"

    @cached_property
    def recommendation(self) -> Recommendation:
        """The method that every output recommends, with the reason."""
        return recommend(self.results)

    @cached_property
    def averages(self) -> dict[Average, pd.DataFrame]:
        """Every metric averaged in both ways: columns `method region metric value low high std floor`."""
        pooled, redrawn = self.results.pooled_frame.assign(std=math.nan, floor=math.nan), self.results.redrawn
        if redrawn is not None:
            floor = redrawn.pooled_frame[[*KEYS, "value"]].rename(columns={"value": "floor"})
            pooled = pooled.drop(columns="floor").merge(floor, on=list(KEYS), how="left")
        return {"images": self.results.summary().rename(columns={"mean": "value"}), "pixels": pooled}

    @cached_property
    def cells(self) -> dict[Average, Mapping[tuple[str, str, str], Cell]]:
        """The cells of the paper's table for each average."""
        return {average: self.results.table(average=average).cells for average in get_args(Average)}

    def value(self, method: str, metric: str, region: str = "all", average: Average | None = None) -> Value:
        """Return a metric of a method; patches are always averaged over images."""
        local = region.startswith("local")
        table = self.averages["images" if local else average or self.results.presentation.average]
        rows = table[(table.method == method) & (table.metric == metric) & (table.region == region)]
        columns = rows[["value", "low", "high", "floor"]].to_numpy(float)
        return Value(metric, *(columns[0].tolist() if len(columns) else [math.nan] * 4))

    def difference(self, method: str, other: str, metric: str = "nll") -> ScoreDifference:
        """Return by how much the metric of `method` in *All* is above that of `other`, paired by image."""
        return difference(self.results, method, other, metric, by_pixels=self._pooled)

    @property
    def _pooled(self) -> bool:
        return self.results.presentation.average == "pixels"


def curve_of(results: Results, method: str, region: str = "all", label: str = "") -> pd.DataFrame:
    """Return the reliability diagram over all pixels, a row for each bin."""
    curves = results.curve_frame
    return curves[(curves.method == method) & (curves.region == region) & (curves.label == label)]


def shared_content(view: View) -> dict[str, Any]:
    """Return the values that several sections read; numbers are shortened, and missing ones are None."""
    results, metrics = view.results, list(dict.fromkeys(view.results.frame["metric"]))
    shown = results.presentation
    return {
        "methods": list(results.methods),
        "baseline": results.baseline,
        "recommended": view.recommendation.method,
        "presentation": {
            "reference": shown.reference,
            "test": shown.test_sentence(),
            "average": shown.average,
            "over": view.average,
        },
        "colours": method_colours(results.methods, results.baseline),
        "region_colours": REGIONS,
        "units": view.units,
        "cases": view.cases,
        "classes": view.class_names,
        "channels": len(results.channels),
        "regions": results.regions,
        "region_names": {region: region_title(region) for region in results.regions},
        "metrics": {
            name: {"title": m.title, "percent": m.percent, "digits": m.digits, "higher": m.higher_is_better}
            for name, m in ((name, metric_named(name)) for name in metrics)
        },
        "calibration": [metric for metric in CALIBRATION if metric in metrics],
        "quality": [metric for metric in QUALITY if metric in metrics],
        "values": _values(results.frame, view.cases),
        "averages": {average: _averages(view, average) for average in view.averages},
        "floor": results.redrawn is not None,
        "curves": _curves(results),
    }


def short(value: Any) -> float | None:
    """Return a number with three digits more than the page shows, or None for a missing one.

    With one more, a number that is rounded twice often differs from the one that the terminal prints.
    """
    number = float(value)
    return float(f"{number:.{_DIGITS}g}") if math.isfinite(number) else None


def nested(frame: pd.DataFrame, keys: Sequence[str], values: Callable[[Any], Any], *, lists: bool = False) -> Any:
    """Return the values of rows in dictionaries inside one another, by the text of some columns.

    Args:
        frame: The rows.
        keys: Columns, from the outermost.
        values: Function from a row to its values.
        lists: Whether several rows have the same keys, and their values are a list.

    Examples:
        >>> frame = pd.DataFrame({"method": ["TS", "TS"], "size": [24, 48], "ece": [0.1, 0.2]})
        >>> nested(frame, ("method", "size"), lambda row: row.ece)
        {'TS': {'24': 0.1, '48': 0.2}}
        >>> nested(frame, ("method",), lambda row: [row.size, row.ece], lists=True)
        {'TS': [[24, 0.1], [48, 0.2]]}
    """
    found: dict[str, Any] = {}
    for row in frame.itertuples():
        *outer, last = (str(getattr(row, key)) for key in keys)
        place = found
        for key in outer:
            place = place.setdefault(key, {})
        if lists:
            place.setdefault(last, []).append(values(row))
        else:
            place[last] = values(row)
    return found


def _values(frame: pd.DataFrame, cases: Sequence[str]) -> Any:
    """Return method -> region -> metric -> a value for each case, in their order."""
    wide = frame.pivot(index=list(KEYS), columns="case", values="value").reindex(columns=list(cases))
    return nested(wide.reset_index(), KEYS, lambda row: [short(value) for value in row[1 + len(KEYS) :]])


def _averages(view: View, average: Average) -> Any:
    """Return method -> region -> metric -> [value, low, high, std, floor, best, beaten].

    Best and beaten are the marks of the paper's table; metrics that it does not have are neither.
    """
    cells = view.cells[average]

    def entries(row: Any) -> list[Any]:
        cell = cells.get((row.method, row.metric, row.region))
        marks = (False, False) if cell is None else (cell.best, cell.beaten)
        return [*map(short, (row.value, row.low, row.high, row.std, row.floor)), *marks]

    return nested(view.averages[average], KEYS, entries)


def _curves(results: Results) -> Any:
    """Return method -> region -> predicted class ("" for all pixels) -> bins."""

    def of_bin(row: Any) -> list[Any]:
        return [int(row.count), int(row.hit), round(float(row.confidence), 2), short(row.low), short(row.high)]

    return nested(results.curves(), ("method", "region", "label"), of_bin, lists=True)
