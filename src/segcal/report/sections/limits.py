"""What limits calibration: the scores of temperatures chosen with the labels, for ever smaller parts of the data."""

from __future__ import annotations

from typing import Any

import pandas as pd

from segcal.functional.catalogue import CATALOGUE
from segcal.report.findings import Findings
from segcal.report.view import View, short


def content(view: View) -> dict[str, Any] | None:
    """Scores by level and metric, and those of the methods beside them; None where they were not measured."""
    frame = view.results.limits_frame
    if frame is None or not len(frame):
        return None
    findings = view.findings
    metrics = [metric for metric in ("nll", "ece") if metric in set(frame["metric"])]
    return {
        "metrics": [{"name": metric, "title": CATALOGUE[metric].title} for metric in metrics],
        "levels": [_row(level, rows, metrics) for level, rows in frame.groupby("level", sort=False)],
        "methods": [
            {"name": method, "values": [_value(findings, method, metric) for metric in metrics]}
            for method in view.results.methods
        ],
    }


def _row(level: Any, rows: pd.DataFrame, metrics: list[str]) -> dict[str, Any]:
    values = dict(zip(rows["metric"], rows["value"], strict=True))
    return {"name": str(level), "values": [short(values.get(metric, float("nan"))) for metric in metrics]}


def _value(findings: Findings, method: str, metric: str) -> float | None:
    found = findings.value(method, metric)
    return None if found is None else short(found.value)
