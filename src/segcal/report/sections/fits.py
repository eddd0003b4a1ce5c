"""What the fits report about themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segcal.evaluation.results import Results


def fit_details(results: Results) -> dict[str, Mapping[str, Any]]:
    """The details that each method's fit reported, where it has a report."""
    fits = results.settings.get("fits") or {}
    return {name: fits[name]["details"] for name in results.methods if name in fits}
