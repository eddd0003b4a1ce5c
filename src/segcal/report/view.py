"""Input of every section of the page: readings of the results, and the plain values that several sections share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd

from segcal.evaluation.decisions import Decisions
from segcal.evaluation.portraits import Portrait
from segcal.evaluation.recommendation import Recommendation, ScoreDifference, difference, recommend
from segcal.evaluation.results import Results
from segcal.functional.catalogue import metric_named
from segcal.regions import region_title
from segcal.report.colours import REGIONS, method_colours
from segcal.tables import CALIBRATION, QUALITY, Average, Cell, Presentation
from segcal.tables.numbers import with_interval, with_unit

_DIGITS = 8

KEYS = ("method", "region", "metric")

Severity = Literal["well calibrated", "slightly", "clearly", "severely"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From the mildest to the worst."""

BANDS: tuple[tuple[float, Severity], ...] = ((0.01, "well calibrated"), (0.03, "slightly"), (0.08, "clearly"))
"""Upper ends of the bands of the ECE in *All* above its floor; beyond the last one it is "severely"."""

_ONE_SIDED = 0.5  # share of the ECE that must point in one direction, or the network is both over- and underconfident


class Value(NamedTuple):
    """A metric of a method in *All*, averaged as the presentation says, with its 95 % interval."""

    metric: str
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return with_interval(self.metric, self.value, self.low, self.high, unit=True)

    @property
    def short(self) -> str:
        """Without the interval."""
        return with_unit(self.metric, self.value)


class CalibrationState(NamedTuple):
    """Calibration of a method.

    Attributes:
        severity: The band of the ECE above its floor, averaged as the presentation says.
        overall: The same over all pixels together. Milder than `severity` where images err in different directions.
        direction: -1 underconfident, 1 overconfident, 0 where both occur and cancel.
        confidence: Mean confidence over all pixels.
        accuracy: Share of correct pixels.
        says: Mean confidence of the bin that adds most to the ECE.
        right: Its accuracy.
    """

    severity: Severity
    overall: Severity
    direction: int
    confidence: float
    accuracy: float
    says: float
    right: float


def severity_of(ece: Value, floor: float = 0.0) -> Severity:
    """Return the band of an ECE above its floor; "well calibrated" too where the interval reaches the floor.

    Examples:
        >>> severity_of(Value("ece", 0.12, 0.1, 0.14)), severity_of(Value("ece", 0.02, 0.004, 0.03), floor=0.005)
        ('severely', 'well calibrated')
    """
    if ece.low <= floor:
        return "well calibrated"
    above = ece.value - floor
    return next((band for end, band in BANDS if above < end), "severely")


@dataclass(frozen=True)
class View:
    """Results with their readings, averaged as their presentation says; portraits of some cases, and decisions."""

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
    def means(self) -> pd.DataFrame:
        """Means over images with intervals and floor: `Results.summary` with the mean called `value`."""
        return self.results.summary().rename(columns={"mean": "value"})

    @cached_property
    def cases(self) -> list[str]:
        """The cases in order."""
        return [str(name) for name in self.results.cases()["case"]]

    @cached_property
    def regions(self) -> list[str]:
        """The regions in order."""
        return list(dict.fromkeys(self.results.frame["region"]))

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
    def _cells(self) -> dict[Average, Mapping[tuple[str, str, str], Cell]]:
        return {}

    def cells(self, average: Average) -> Mapping[tuple[str, str, str], Cell]:
        """Return the cells of the paper's table, whose tests are run once for each average."""
        if average not in self._cells:
            self._cells[average] = self.results.table(average=average).cells
        return self._cells[average]

    def value(self, method: str, metric: str, region: str = "all") -> Value | None:
        """Return a metric of a method; patches are always averaged over images."""
        return _read(self.results.pooled_frame if self._is_pooled(region) else self.means, method, metric, region)

    def floor(self, method: str, region: str = "all") -> float | None:
        """Return the ECE that a method would have if it were perfectly calibrated; None if that was not measured."""
        if self._is_pooled(region):
            return self._pooled_floor(method, region)
        values = _rows(self.means, method, "ece", region)["floor"].dropna()
        return float(values.iloc[0]) if len(values) else None

    def state(self, method: str) -> CalibrationState | None:
        """Return the calibration of a method in *All*; None where that was not measured."""
        ece, curve = self.value(method, "ece"), curve_of(self.results, method)
        if ece is None or not curve["count"].sum():
            return None
        pixels, gaps = curve["count"].sum(), curve["confidence"] - curve["hit"]
        worst = int(np.argmax(gaps.abs()))
        says, right = (float(curve[name].iloc[worst] / curve["count"].iloc[worst]) for name in ("confidence", "hit"))
        one_sided = abs(gaps.sum()) > _ONE_SIDED * gaps.abs().sum()
        pooled = _read(self.results.pooled_frame, method, "ece", "all") or ece
        return CalibrationState(
            severity_of(ece, self.floor(method) or 0.0),
            severity_of(pooled, self._pooled_floor(method) or 0.0),
            int(np.sign(gaps.sum())) if one_sided else 0,
            float(curve["confidence"].sum() / pixels),
            float(curve["hit"].sum() / pixels),
            says,
            right,
        )

    def difference(self, method: str, other: str, metric: str = "nll") -> ScoreDifference:
        """Return by how much the metric of `method` in *All* is above that of `other`, paired by image."""
        return difference(self.results, method, other, metric, by_pixels=self._pooled)

    def _pooled_floor(self, method: str, region: str = "all") -> float | None:
        redrawn = self.results.redrawn
        found = None if redrawn is None else _read(redrawn.pooled_frame, method, "ece", region)
        return None if found is None else found.value

    @property
    def _pooled(self) -> bool:
        return self.presentation.average == "pixels"

    def _is_pooled(self, region: str) -> bool:
        return self._pooled and not region.startswith("local")


def curve_of(results: Results, method: str, region: str = "all", label: str = "") -> pd.DataFrame:
    """Return the reliability diagram over all pixels, a row for each bin."""
    curves = results.curve_frame
    return curves[(curves.method == method) & (curves.region == region) & (curves.label == label)]


def _rows(table: pd.DataFrame, method: str, metric: str, region: str) -> pd.DataFrame:
    return table[(table.method == method) & (table.region == region) & (table.metric == metric)]


def _read(table: pd.DataFrame, method: str, metric: str, region: str) -> Value | None:
    rows = _rows(table, method, metric, region)
    if not len(rows) or np.isnan(rows.iloc[0]["value"]):
        return None
    return Value(metric, *(float(rows.iloc[0][column]) for column in ("value", "low", "high")))


def shared_content(view: View) -> dict[str, Any]:
    """Return the values that several sections read; numbers are shortened, and missing ones are None."""
    results, metrics = view.results, list(dict.fromkeys(view.results.frame["metric"]))
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
        "metrics": {
            name: {"title": m.title, "percent": m.percent, "digits": m.digits, "higher": m.higher_is_better}
            for name, m in ((name, metric_named(name)) for name in metrics)
        },
        "calibration": [metric for metric in CALIBRATION if metric in metrics],
        "quality": [metric for metric in QUALITY if metric in metrics],
        "values": _values(results.frame, view.cases),
        "pooled": pooled_values(results),
        "floor": None if results.redrawn is None else nested(view.means, KEYS, lambda row: short(row.floor)),
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
