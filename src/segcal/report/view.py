"""Input of every section of the page, and the plain values that several of them share."""

from __future__ import annotations

import math
from collections.abc import Sequence
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

Nested = dict[str, dict[str, dict[str, list[Any]]]]
"""Method -> region -> metric -> values."""


@dataclass(frozen=True)
class View:
    """Results, portraits of some cases, decisions if there are any, and how they are presented."""

    results: Results
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

    @cached_property
    def scores(self) -> MethodScores:
        """Readings that several sections share; their bootstrap runs once."""
        return MethodScores(self.results)

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
        "floor": None if results.redrawn is None else _floors(results),
        "pooled_floor": {} if results.redrawn is None else _pooled_ece(results.redrawn),
        "curves": _curves(results),
    }


def short(value: Any) -> float | None:
    """Return a number with three digits more than the page shows, or None for a missing one.

    With one more, a number that is rounded twice often differs from the one that the terminal prints.
    """
    number = float(value)
    return float(f"{number:.{_DIGITS}g}") if math.isfinite(number) else None


def _floors(results: Results) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return the floor of each mean that the table shows: over images, Local-Avg over patches."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for row in results.summary().itertuples():
        found.setdefault(str(row.method), {}).setdefault(str(row.region), {})[str(row.metric)] = short(row.floor)
    return found


def _metric(name: str) -> dict[str, Any]:
    metric = metric_named(name)
    return {
        "title": metric.title,
        "percent": metric.percent,
        "digits": metric.digits,
        "higher": metric.higher_is_better,
    }


def _values(frame: pd.DataFrame, cases: Sequence[str]) -> Nested:
    """Return a value for each case, in their order."""
    found: Nested = {}
    place = {case: k for k, case in enumerate(cases)}
    for (method, region, metric), rows in frame.groupby(["method", "region", "metric"], sort=False):
        values: list[float | None] = [None] * len(cases)
        for case, value in zip(rows["case"], rows["value"], strict=True):
            values[place[case]] = short(value)
        found.setdefault(str(method), {}).setdefault(str(region), {})[str(metric)] = values
    return found


def pooled_values(results: Results) -> Nested:
    """Return value and interval over all pixels together."""
    found: Nested = {}
    for row in results.pooled().itertuples():
        entry = found.setdefault(str(row.method), {}).setdefault(str(row.region), {})
        entry[str(row.metric)] = [short(row.value), short(row.low), short(row.high)]
    return found


def _pooled_ece(results: Results) -> dict[str, dict[str, float | None]]:
    return {
        method: {region: metrics["ece"][0] for region, metrics in regions.items()}
        for method, regions in pooled_values(results).items()
    }


def _curves(results: Results) -> Nested:
    """Return method -> region -> predicted class ("" for all pixels) -> bins."""
    found: Nested = {}
    if results.curve_frame is None:
        return found
    for row in results.curves().itertuples():
        bins = found.setdefault(str(row.method), {}).setdefault(str(row.region), {}).setdefault(str(row.label), [])
        bins.append([int(row.count), int(row.hit), round(float(row.confidence), 2), short(row.low), short(row.high)])  # type: ignore[arg-type, call-overload]
    return found
