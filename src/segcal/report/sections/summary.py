"""What was measured, how badly the network is calibrated, and what helps."""

from __future__ import annotations

from typing import Any

from segcal.calibrators import method_titles
from segcal.regions import region_notes
from segcal.report.findings import Findings
from segcal.report.view import View, short
from segcal.report.words import average_in_words, headline

_CARDS = (("nll", "all"), ("ece", "all"), ("ece", "boundary"), ("ece", "local-max"))


def content(view: View) -> dict[str, Any]:
    """Headline, facts, warnings and a chart of the main figures of each method."""
    results, findings = view.results, view.findings
    return {
        "dataset": results.settings.get("dataset"),
        "headline": headline(findings),
        "severity": None if (state := findings.state(results.baseline)) is None else state.severity,
        "facts": _facts(view),
        "warnings": list(results.settings["warnings"]),
        "titles": method_titles(results.methods),
        "cards": [card for metric, region in _CARDS if (card := _card(findings, metric, region))],
        "regions": region_notes(view.regions, whole=results.is_whole),
    }


def _card(findings: Findings, metric: str, region: str) -> dict[str, Any] | None:
    rows = []
    for method in findings.results.methods:
        if (value := findings.value(method, metric, region)) is not None:
            floor = findings.floor(method, region) if metric == "ece" else None
            numbers = (short(value.value), short(value.low), short(value.high), None if floor is None else short(floor))
            rows.append(dict(zip(("value", "low", "high", "floor"), numbers, strict=True), method=method))
    if not rows:
        return None
    over = "mean over images" if region == "local-max" else average_in_words(findings.results)
    return {"metric": metric, "region": region, "over": over, "rows": rows}


def _facts(view: View) -> list[str]:
    """Date, images, pixels, classes and version."""
    results, settings = view.results, view.results.settings
    pooled = results.pooled()
    rows = pooled[(pooled.region == "all") & (pooled.method == results.baseline)]
    images = len(view.cases)
    facts = [
        settings.get("date"),
        f"{images} images" if images > 1 else "1 image",
        f"{int(rows['pixels'].iloc[0]):,} pixels in All" if len(rows) else None,
        f"{settings['num_classes']} {'channels' if results.channels else 'classes'}",
        f"segcal {settings['segcal']}" if "segcal" in settings else None,
    ]
    return [fact for fact in facts if fact]
