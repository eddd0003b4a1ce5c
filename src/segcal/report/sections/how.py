"""Definitions and settings."""

from __future__ import annotations

from typing import Any

from segcal.regions import region_title
from segcal.report.view import View

DEFINITIONS = (
    ("Confidence", "the largest probability of a pixel; its class is the prediction"),
    ("Calibrated", "of the pixels with confidence 0.9, 90 % are predicted correctly"),
    ("ECE", "expected calibration error: mean gap between confidence and accuracy over bins, weighted by pixels"),
    ("MCE", "maximum calibration error: the largest gap of a bin with pixels"),
    ("SCE, ACE", "the same gaps for each predicted class; ACE uses bins with equal numbers of pixels"),
    ("NLL", "negative log-likelihood of the true class in nats: a proper score, least for the true probabilities"),
    ("Brier score", "squared error of the probabilities, also a proper score"),
    ("Entropy", "mean entropy of the probabilities in nats"),
    ("Floor", "what a method would score on these pixels if its probabilities were exactly right"),
    (
        "All",
        "labelled pixels outside the background, and the pixels of Boundary; every labelled pixel without a background",
    ),
    ("Boundary", "pixels whose label differs from that of a neighbour within the boundary width"),
    ("Local-Avg, Local-Max", "the average patch and the worst patch of an image, of those with pixels of All"),
    ("Ignored", "pixels that belong to no region; regions and patches without pixels are skipped and counted"),
    (
        "Severity",
        "ECE in All above its floor: below 1 % well calibrated, below 3 % slightly, below 8 % clearly, "
        "else severely miscalibrated",
    ),
)


def how(view: View) -> dict[str, Any]:
    """Return pairs of names and values."""
    return {"definitions": DEFINITIONS, "settings": _settings(view)}


def _settings(view: View) -> list[tuple[str, str]]:
    settings, shown = view.results.settings, view.results.presentation
    skipped = ", ".join(f"{count} in {region_title(name)}" for name, count in view.results.skipped().items() if count)
    names: dict[int | None, str] = {None: "none", **dict(enumerate(view.class_names))}
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
        ("Background", names.get(settings.get("background"), settings.get("background"))),
        ("Boundary width", settings.get("boundary_width")),
        ("Patches", f"{settings.get('patches')} of {settings.get('patch_size')} pixels per side in each image"),
        ("Seed", settings.get("seed")),
        ("Bootstrap", f"{settings.get('repetitions')} repetitions over {view.units}, {settings.get('interval')}"),
        ("Skipped (no pixels)", skipped or "nothing"),
        ("segcal", settings.get("segcal")),
        *settings.get("versions", {}).items(),
    ]
    return [(name, str(value)) for name, value in entries if value is not None]
