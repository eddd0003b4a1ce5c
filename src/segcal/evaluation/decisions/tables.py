"""The tables of decisions, as terminal and page show them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from segcal.evaluation.decisions.model import Decisions
from segcal.tables import TextTable
from segcal.tables.numbers import MISSING, percent, threshold_number, volume_number
from segcal.types import InputError

_COVERAGES = (0.5, 0.8, 0.9, 0.95, 1.0)


def decision_tables(found: Decisions) -> tuple[TextTable, TextTable, TextTable]:
    """Return thresholds, risk against coverage, and volumes."""
    return _thresholds(found), _selective(found), _intervals(found)


def volume_table(volumes: pd.DataFrame, level: float) -> TextTable:
    """Return the volumes of new cases with their intervals."""
    names = ("expected", "low", "high")
    rows = [
        (*(row[key] for key in ("case", "method", "label")), *(volume_number(row[name]) for name in names), row["unit"])
        for row in _rows(volumes)
    ]
    headings = ("Case", "Method", "Class", "expected", "low", "high", "unit")
    return TextTable(headings, rows, f"Volumes with {percent(level)} intervals", keys=3)


def _thresholds(found: Decisions) -> TextTable:
    rows = []
    for row in _rows(found.thresholds):
        shares = (_share(row[name]) for name in ("missed", "left_out", "by_label", "precision"))
        times = MISSING if math.isnan(row["size"]) else f"{row['size']:.2f}"
        shown = threshold_number(row["threshold"]) if _is_enough(row) else f"0 ({_needed(found, row)})"
        rows.append((row["method"], row["label"], shown, *shares, times, str(row["images"])))
    title = (
        f"Thresholds that miss at most {percent(found.settings['risk'])} of each class, on average over new images "
        "that contain it"
    )
    note = (
        "A pixel is taken for a class where its probability reaches the threshold (conformal risk control). Left out: "
        f"missed with the threshold of all other {_units(found)}. By label: missed by the predicted labels. Size: "
        "pixels taken, relative to the true number."
    )
    headings = ("Method", "Class", "threshold", "missed", "left out", "by label", "precision", "size", "images")
    return TextTable(headings, rows, title, note, keys=2)


def _selective(found: Decisions) -> TextTable:
    keys = {"Method": "method", "Reject": "unit"}
    if found.channels != ("",):
        keys = {"Method": "method", "Channel": "channel", "Reject": "unit"}
    risks = {(*(row[key] for key in keys.values()), row["coverage"]): row["risk"] for row in _rows(found.curves)}
    rows = []
    for row in _rows(found.selective):
        own = [row[key] for key in keys.values()]
        if any((*own, at) not in risks for at in _COVERAGES):
            raise InputError(
                "the curves of saved decisions must have every coverage, got fewer; run 'segcal decide' again"
            )
        shares = (_share(risks[*own, at]) for at in _COVERAGES)
        rows.append((*own, *shares, f"{row['aurc']:.4f}", f"{row['excess']:.4f}"))
    headings = (*keys, *(percent(at) for at in _COVERAGES[:-1]), "all", "AURC", "excess")
    title = "Risk (fraction of wrong pixels) of the most confident part"
    note = "AURC: area under the curve of risk against coverage; excess: above that of a perfect order."
    return TextTable(headings, rows, title, note, keys=len(keys))


def _intervals(found: Decisions) -> TextTable:
    means = {(row["method"], row["label"]): row for row in _rows(found.mean_volumes())}
    rows = []
    for row in _rows(found.intervals):
        own = means[row["method"], row["label"]]
        reach = volume_number(own["reach"]) if _is_enough(row) else _needed(found, row)
        numbers = volume_number(own["expected"]), volume_number(own["true"]), reach
        rows.append((row["method"], row["label"], *numbers, _share(row["left_out"]), str(row["images"])))
    unit = f" in {found.volume_unit}" if found.volume_unit else ""
    level = percent(found.settings["level"])
    title = f"Volume = sum of probabilities{unit}, with intervals for {level} of new images"
    note = (
        "Means over images; the interval is conformal, in units of the uncertain volume of each image. Inside, left "
        f"out: images inside the interval of all other {_units(found)}."
    )
    headings = ("Method", "Class", "expected", "true", "half interval", "inside, left out", "images")
    return TextTable(headings, rows, title, note, keys=2)


def _rows(table: pd.DataFrame) -> list[dict[Any, Any]]:
    return table.to_dict(orient="records")


def _share(value: float) -> str:
    return MISSING if math.isnan(value) else percent(value, 1)


def _is_enough(row: Mapping[Any, Any]) -> bool:
    return bool(row["groups"] >= row["needed"])


def _needed(found: Decisions, row: Mapping[Any, Any]) -> str:
    return f"needs {row['needed']} {_units(found)}"


def _units(found: Decisions) -> str:
    return "groups" if any(found.settings["groups"]) else "images"
