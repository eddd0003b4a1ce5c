"""The sections of the page, from top to bottom.

A section is a module here with `content(view)`, which returns its values as plain data, or None to leave the section
out; and a script of the same name, which draws them with `addSection(name, title, build)`. To add one, write both files
and add a line to `SECTIONS`. Charts that several sections share are in `charts/`; every file there is part of the page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segcal.report.sections import (
    cases,
    channels,
    choice,
    decisions,
    how,
    influence,
    likelihood,
    limits,
    reliability,
    sizes,
    summary,
    surfaces,
    table,
    trust,
    variation,
    worst,
)
from segcal.report.view import View

SECTIONS: dict[str, Callable[[View], Any]] = {
    "summary": summary.content,
    "table": table.content,
    "channels": channels.content,
    "reliability": reliability.content,
    "cases": cases.content,
    "surfaces": surfaces.content,
    "variation": variation.content,
    "worst": worst.content,
    "limits": limits.content,
    "choice": choice.content,
    "influence": influence.content,
    "sizes": sizes.content,
    "likelihood": likelihood.content,
    "trust": trust.content,
    "decisions": decisions.content,
    "how": how.content,
}


def section_contents(view: View) -> dict[str, Any]:
    """The values of every section that has something to show, in order."""
    found = {name: content(view) for name, content in SECTIONS.items()}
    return {name: content for name, content in found.items() if content is not None}
