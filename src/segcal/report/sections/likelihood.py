"""NLL against entropy (Theorem 4), over all pixels and for each image."""

from __future__ import annotations

from typing import Any

from segcal.report.view import View


def content(view: View) -> dict[str, Any] | None:
    """Nothing of its own: figures and values are shared. None where nothing was pooled."""
    pooled = view.results.pooled()
    return {} if len(pooled[(pooled.metric == "nll") & (pooled.region == "all")].dropna(subset=["value"])) else None
