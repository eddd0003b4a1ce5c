"""Reliability diagrams over all images."""

from __future__ import annotations

from typing import Any

from segcal.report.view import View


def content(view: View) -> dict[str, Any] | None:
    """Nothing of its own: the curves are shared. None where no curves were kept."""
    return None if view.results.curve_frame is None else {}
