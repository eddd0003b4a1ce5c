"""Decisions made with the probabilities: thresholds, risk against coverage, volumes."""

from __future__ import annotations

from typing import Any

from segcal.evaluation.decisions import Decisions, decision_tables
from segcal.report.view import View, nested, short


def decisions(view: View) -> dict[str, Any] | None:
    """Return the decisions given with the results; None without any."""
    return None if view.decisions is None else decisions_content(view.decisions)


def decisions_content(decisions: Decisions) -> dict[str, Any]:
    """Return the tables, and curves of risk against coverage."""
    return {
        "channels": list(decisions.channels),
        "curves": nested(decisions.curves, ("channel", "unit", "method"), _point, lists=True),
        "tables": [vars(table) for table in decision_tables(decisions)],
    }


def _point(row: Any) -> list[float | None]:
    return [short(row.coverage), short(row.risk), short(row.confidence)]
