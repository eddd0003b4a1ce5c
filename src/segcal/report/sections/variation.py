"""How images of the data set differ: the calibration error of each of them, beside pictures of some."""

from __future__ import annotations

from typing import Any

from segcal.report.view import View


def content(view: View) -> dict[str, Any] | None:
    """Nothing of its own: values and portraits are shared. None for a single image."""
    return None if len(view.cases) < 2 else {}
