"""Decisions made with the probabilities: thresholds, risk against coverage, volumes."""

from __future__ import annotations

from typing import Any

from segcal.evaluation.decisions import Decisions
from segcal.report.view import View, nested, short
from segcal.tables.numbers import threshold_number, volume_number

_SHOWN = ("threshold", "missed", "left_out", "by_label", "precision", "size")


def decisions(view: View) -> dict[str, Any] | None:
    """Return the decisions given with the results; None without any."""
    return None if view.decisions is None else decisions_content(view.decisions)


def decisions_content(decisions: Decisions) -> dict[str, Any]:
    """Return rows of thresholds and intervals, and curves of risk against coverage."""
    return {
        "risk": decisions.settings["risk"],
        "level": decisions.settings["level"],
        "channels": list(decisions.channels),
        "volume_unit": decisions.volume_unit,
        "units": "groups" if any(decisions.settings["groups"]) else "images",
        "thresholds": [
            {
                "method": row["method"],
                "label": row["label"],
                "enough": bool(row["groups"] >= row["needed"]),
                "needed": int(row["needed"]),
                "images": int(row["images"]),
                "shown": threshold_number(row["threshold"]),
                **{name: short(row[name]) for name in _SHOWN},
            }
            for row in decisions.thresholds.to_dict(orient="records")
        ],
        "curves": nested(decisions.curves, ("channel", "unit", "method"), _point, lists=True),
        "areas": [
            {
                "method": row["method"],
                "channel": row["channel"],
                "unit": row["unit"],
                **{name: short(row[name]) for name in ("aurc", "excess", "risk")},
            }
            for row in decisions.selective.to_dict(orient="records")
        ],
        "intervals": _intervals(decisions),
    }


def _point(row: Any) -> list[float | None]:
    return [short(row.coverage), short(row.risk), short(row.confidence)]


def _intervals(decisions: Decisions) -> list[dict[str, Any]]:
    """Return mean volumes and half intervals of each method and class."""
    means = {(row["method"], row["label"]): row for row in decisions.mean_volumes().to_dict(orient="records")}
    names = ("expected", "true", "reach")
    return [
        {
            "method": row["method"],
            "label": row["label"],
            "enough": bool(row["groups"] >= row["needed"]),
            "needed": int(row["needed"]),
            "left_out": short(row["left_out"]),
            "shown": {name: volume_number(means[row["method"], row["label"]][name]) for name in names},
            **{name: short(means[row["method"], row["label"]][name]) for name in names},
        }
        for row in decisions.intervals.to_dict(orient="records")
    ]
