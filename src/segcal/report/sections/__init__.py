"""The sections of the page, from top to bottom.

A section is a function from the view to its values as plain data, or to None to leave the section out; and a script of
its name, which draws them with `addSection(name, title, build)`. To add one, write both and add a line to `SECTIONS`.
Charts that several sections share are in `charts/`; every file there is part of the page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segcal.report.sections import fits, tables
from segcal.report.sections.cases import cases
from segcal.report.sections.how import how
from segcal.report.sections.summary import summary
from segcal.report.view import View

SECTIONS: dict[str, Callable[[View], Any]] = {
    "summary": summary,
    "table": lambda view: {},
    "channels": tables.channels,
    "reliability": lambda view: {},
    "cases": cases,
    "surfaces": tables.surfaces,
    "variation": lambda view: None if len(view.cases) < 2 else {},
    "worst": tables.worst,
    "limits": tables.limits,
    "choice": fits.choices,
    "influence": fits.influences,
    "sizes": tables.sizes,
    "likelihood": tables.likelihood,
    "trust": tables.trust,
    "decisions": tables.decisions,
    "how": how,
}
"""Sections whose values are all shared with others hold an empty dictionary."""


def section_contents(view: View) -> dict[str, Any]:
    """Return the values of every section that has something to show, in order."""
    found = {name: content(view) for name, content in SECTIONS.items()}
    return {name: content for name, content in found.items() if content is not None}
