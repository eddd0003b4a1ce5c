"""The page of decisions: one section, on a page of its own or on that of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from segcal.evaluation.decisions import Decisions
from segcal.files import signed_file
from segcal.report import render
from segcal.report.sections.decisions import decisions_content


def write_decisions_page(decisions: Decisions, path: str | Path) -> None:
    """Write a page with decisions alone; the file appears whole or not at all."""
    page = render(_content(decisions))
    with signed_file(path) as staging:
        staging.write_text(page, encoding="utf-8")


def _content(decisions: Decisions) -> dict[str, Any]:
    """Return the values that the scripts of the page read, most of them empty."""
    methods = list(decisions.methods)
    return {
        "methods": methods,
        "baseline": methods[0],
        "presentation": {"reference": None, "test": "", "average": "images"},
        "units": "groups of images" if any(decisions.settings["groups"]) else "images",
        "cases": list(decisions.settings["cases"]),
        "classes": list(decisions.class_names),
        "regions": [],
        "region_names": {},
        "metrics": {},
        "calibration": [],
        "quality": [],
        "values": {},
        "pooled": {},
        "floor": None,
        "pooled_floor": {},
        "curves": {},
        "sections": {"decisions": decisions_content(decisions)},
    }
