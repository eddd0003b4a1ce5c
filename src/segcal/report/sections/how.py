"""Definitions and settings."""

from __future__ import annotations

from typing import Any

from segcal.regions import region_title
from segcal.report.view import View
from segcal.report.words import DEFINITIONS


def how(view: View) -> dict[str, Any]:
    """Return pairs of names and values."""
    return {"definitions": DEFINITIONS, "settings": _settings(view)}


def _settings(view: View) -> list[tuple[str, str]]:
    settings, shown = view.results.settings, view.presentation
    skipped = ", ".join(f"{count} in {region_title(name)}" for name, count in view.results.skipped().items() if count)
    entries = [
        ("Data set", settings.get("dataset")),
        ("Date", settings.get("date")),
        ("Average", "mean over images" if shown.average == "images" else "all pixels together"),
        ("Reference", shown.reference or "none"),
        ("Test", shown.test_sentence()),
        ("Recommended method", "lower NLL beyond noise, Brier score not higher"),
        ("Bins", settings.get("bins")),
        ("Form of SCE and ACE", settings.get("form")),
        ("Bin edges of ACE from", settings.get("ace_edges")),
        ("Sigmoid channels", ", ".join(settings.get("channels") or []) or None),
        ("Ignored labels", ", ".join(map(str, settings.get("ignore_index") or [])) or "none"),
        ("Background", _named(view, settings.get("background"))),
        ("Boundary width", settings.get("boundary_width")),
        ("Patches", f"{settings.get('patches')} of {settings.get('patch_size')} pixels per side in each image"),
        ("Seed", settings.get("seed")),
        ("Bootstrap", f"{settings.get('repetitions')} repetitions over {view.units}, {settings.get('interval')}"),
        ("Skipped (no pixels)", skipped or "nothing"),
        ("segcal", settings.get("segcal")),
        *settings.get("versions", {}).items(),
    ]
    return [(name, str(value)) for name, value in entries if value is not None]


def _named(view: View, label: int | None) -> str:
    if label is None:
        return "none"
    return view.class_names[label] if label < len(view.class_names) else str(label)
