"""How a method that chooses among others came to its choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segcal.evaluation.results import Results
from segcal.report.sections.fits import fit_details
from segcal.report.view import View


def content(view: View) -> list[dict[str, Any]] | None:
    """The choices of all methods; None where none was made."""
    return choices(view.results) or None


def choices(results: Results) -> list[dict[str, Any]]:
    """For each method that chose among others: its choice, the reason, and the scores of each candidate."""
    found = []
    for name, details in fit_details(results).items():
        if "scores" in details and "chosen" in details:
            rows = [{"name": candidate, **_shortened(score)} for candidate, score in details["scores"].items()]
            found.append({"method": name, "chosen": details["chosen"], "why": details["why"], "rows": rows})
    return found


def _shortened(score: Mapping[str, Any]) -> dict[str, Any]:
    return {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in score.items()}
