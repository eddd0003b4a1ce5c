"""Scores of the methods, averaged as their presentation says, and the calibration of the network in bands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np
import pandas as pd

from segcal.evaluation.recommendation import Recommendation, ScoreDifference, difference, recommend
from segcal.evaluation.results import Results
from segcal.tables.numbers import with_interval, with_unit

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


@dataclass(frozen=True)
class CalibrationState:
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
class MethodScores:
    """Readings of results, averaged as their presentation says."""

    results: Results

    @cached_property
    def recommendation(self) -> Recommendation:
        """The method that every output recommends, with the reason."""
        return recommend(self.results)

    def value(self, method: str, metric: str, region: str = "all") -> Value | None:
        """A metric of a method; patches are always averaged over images."""
        pooled = self._pooled and not region.startswith("local")
        return _read(self._pooled_table if pooled else self.means, method, metric, region)

    def floor(self, method: str, region: str = "all") -> float | None:
        """The ECE that a method would have if it were perfectly calibrated; None if that was not measured."""
        if self.results.redrawn is None:
            return None
        if self._pooled and not region.startswith("local"):
            return self._pooled_floor(method, region)
        rows = self.means
        values = rows[(rows.method == method) & (rows.region == region) & (rows.metric == "ece")]["floor"].dropna()
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
        pooled = _read(self._pooled_table, method, "ece", "all") or ece
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
        if self.results.redrawn is None:
            return None
        found = _read(self.results.redrawn.pooled(), method, "ece", region)
        return None if found is None else found.value

    @property
    def _pooled(self) -> bool:
        return self.results.presentation.average == "pixels"

    @cached_property
    def _pooled_table(self) -> pd.DataFrame:
        return self.results.pooled()

    @cached_property
    def means(self) -> pd.DataFrame:
        """Means over images with intervals: `Results.summary` with the mean called `value`."""
        return self.results.summary().rename(columns={"mean": "value"})


def curve_of(results: Results, method: str, region: str = "all", label: str = "") -> pd.DataFrame:
    """Return the reliability diagram over all pixels, a row for each bin."""
    curves = results.curve_frame
    return curves[(curves.method == method) & (curves.region == region) & (curves.label == label)]


def _read(table: pd.DataFrame, method: str, metric: str, region: str) -> Value | None:
    rows = table[(table.method == method) & (table.region == region) & (table.metric == metric)]
    if not len(rows) or np.isnan(rows.iloc[0]["value"]):
        return None
    return Value(metric, *(float(rows.iloc[0][column]) for column in ("value", "low", "high")))
