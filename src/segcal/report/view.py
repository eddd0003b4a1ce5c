"""Input of every section of the page, and the plain values that several of them share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from segcal.evaluation.decisions import Decisions
from segcal.evaluation.portraits import Portrait
from segcal.evaluation.results import Results
from segcal.functional.catalogue import metric_named
from segcal.regions import region_title
from segcal.report.colours import REGIONS, method_colours
from segcal.report.scores import MethodScores
from segcal.tables import CALIBRATION, QUALITY, Presentation

_DIGITS = 8

KEYS = ("method", "region", "metric")


@dataclass(frozen=True)
class View(MethodScores):
    """Results, portraits of some cases, and decisions if there are any."""

    portraits: Sequence[Portrait] = ()
    decisions: Decisions | None = None

    @property
    def presentation(self) -> Presentation:
        """The choice of reference, test and average."""
        return self.results.presentation

    @property
    def class_names(self) -> list[str]:
        """One name per class."""
        settings = self.results.settings
        return [str(name) for name in settings.get("class_names") or range(settings["num_classes"])]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row per case, method, region and metric."""
        return self.results.to_frame()

    @cached_property
    def cases(self) -> list[str]:
        """The cases in order."""
        return [str(name) for name in self.results.cases()["case"]]

    @cached_property
    def regions(self) -> list[str]:
        """The regions in order."""
        return list(dict.fromkeys(self.frame["region"]))

    @property
    def units(self) -> str:
        """Unit that the bootstrap draws."""
        return "groups of images" if (self.results.cases()["group"] != "").any() else "images"


def shared_content(view: View) -> dict[str, Any]:
    """Return the values that several sections read; numbers are shortened, and missing ones are None."""
    results, metrics = view.results, list(dict.fromkeys(view.frame["metric"]))
    return {
        "methods": list(results.methods),
        "baseline": results.baseline,
        "presentation": {
            "reference": view.presentation.reference,
            "test": view.presentation.test_sentence(),
            "average": view.presentation.average,
        },
        "colours": method_colours(results.methods, results.baseline),
        "region_colours": REGIONS,
        "units": view.units,
        "cases": view.cases,
        "classes": view.class_names,
        "channels": len(results.channels),
        "regions": view.regions,
        "region_names": {region: region_title(region) for region in view.regions},
        "metrics": {metric: _metric(metric) for metric in metrics},
        "calibration": [metric for metric in CALIBRATION if metric in metrics],
        "quality": [metric for metric in QUALITY if metric in metrics],
        "values": _values(view.frame, view.cases),
        "pooled": pooled_values(results),
        "floor": None if results.redrawn is None else nested(results.summary(), KEYS, lambda row: short(row.floor)),
        "pooled_floor": {} if results.redrawn is None else pooled_values(results.redrawn),
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


def _metric(name: str) -> dict[str, Any]:
    metric = metric_named(name)
    return {
        "title": metric.title,
        "percent": metric.percent,
        "digits": metric.digits,
        "higher": metric.higher_is_better,
    }


def _values(frame: pd.DataFrame, cases: Sequence[str]) -> Any:
    """Return method -> region -> metric -> a value for each case, in their order."""
    wide = frame.pivot(index=list(KEYS), columns="case", values="value").reindex(columns=list(cases))
    return nested(wide.reset_index(), KEYS, lambda row: [short(value) for value in row[1 + len(KEYS) :]])


def pooled_values(results: Results) -> Any:
    """Return method -> region -> metric -> value and interval over all pixels together."""
    return nested(results.pooled(), KEYS, lambda row: [short(row.value), short(row.low), short(row.high)])


def _curves(results: Results) -> Any:
    """Return method -> region -> predicted class ("" for all pixels) -> bins."""

    def of_bin(row: Any) -> list[Any]:
        return [int(row.count), int(row.hit), round(float(row.confidence), 2), short(row.low), short(row.high)]

    return nested(results.curves(), ("method", "region", "label"), of_bin, lists=True)
