"""Maps of chosen cases, and their global and local reliability (the paper's Figs. 1 and 2)."""

from __future__ import annotations

from typing import Any

from segcal.evaluation.portraits import LEVELS, NOTHING
from segcal.evaluation.portraits.optimum import WINDOW
from segcal.report.pictures import portrait_content
from segcal.report.view import View


def content(view: View) -> dict[str, Any] | None:
    """The portraits; None where there are none."""
    if not view.portraits:
        return None
    return {
        "portraits": [portrait_content(portrait, view.class_names) for portrait in view.portraits],
        "levels": LEVELS,
        "nothing": NOTHING,
        "optimum_window": WINDOW,
    }
