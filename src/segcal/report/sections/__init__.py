"""The sections of the page, from top to bottom.

A section is a function from the view to its values as plain data, or to None to leave the section out; and a script of
its name, which draws them with `addSection(name, title, build)`. To add one, write both and add a line to `SECTIONS`.
Charts that several sections share are in `charts/`; every file there is part of the page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segcal.report.sections import fits, further
from segcal.report.sections.cases import cases
from segcal.report.sections.decisions import decisions
from segcal.report.sections.how import how
from segcal.report.sections.summary import summary
from segcal.report.sections.table import table
from segcal.report.view import View, pooled_values


def _channels(view: View) -> dict[str, Any] | None:
    """Return channel -> method -> region -> metric -> value and interval; None unless there are several channels."""
    return {name: pooled_values(own) for name, own in view.results.channels.items()} or None


def _likelihood(view: View) -> dict[str, Any] | None:
    pooled = view.results.pooled()
    return {} if len(pooled[(pooled.metric == "nll") & (pooled.region == "all")].dropna(subset=["value"])) else None


SECTIONS: dict[str, Callable[[View], Any]] = {
    "summary": summary,
    "table": table,
    "channels": _channels,
    "reliability": lambda view: {},
    "cases": cases,
    "surfaces": further.surfaces,
    "variation": lambda view: None if len(view.cases) < 2 else {},
    "worst": further.worst,
    "limits": further.limits,
    "choice": fits.choices,
    "influence": fits.influences,
    "sizes": further.sizes,
    "likelihood": _likelihood,
    "trust": further.trust,
    "decisions": decisions,
    "how": how,
}
"""Sections whose values are all shared with others hold an empty dictionary."""


def section_contents(view: View) -> dict[str, Any]:
    """Return the values of every section that has something to show, in order."""
    found = {name: content(view) for name, content in SECTIONS.items()}
    return {name: content for name, content in found.items() if content is not None}
