"""Summary: what was measured, how badly the network is calibrated, and what helps."""

from __future__ import annotations

from typing import Any

from segcal.calibrators import method_titles, methods
from segcal.regions import region_notes
from segcal.report.view import View, short
from segcal.report.words import average_in_words, headline
from segcal.text import counted

_CARDS = (("nll", "all"), ("ece", "all"), ("ece", "boundary"), ("ece", "local-max"))


def summary(view: View) -> dict[str, Any]:
    """Return two sentences, facts, warnings, a chart of the main figures of each method, and what to do."""
    results = view.results
    state, best, *more = headline(view)
    return {
        "dataset": results.settings.get("dataset"),
        "state": state,
        "best": best,
        "more": more,
        "recommended": view.recommendation.method,
        "advice": _advice(view),
        "severity": _severity(view),
        "facts": _facts(view),
        "warnings": list(results.settings["warnings"]),
        "titles": method_titles(results.methods),
        "cards": [card for metric, region in _CARDS if (card := _card(view, metric, region))],
        "regions": region_notes(view.regions, whole=results.is_whole),
    }


def _severity(view: View) -> str | None:
    """Return the severity that colours the headline; None where an unnamed background hides it."""
    found = view.state(view.results.baseline)
    return None if found is None or "unnamed_background" in view.results.settings else found.severity


def _advice(view: View) -> dict[str, Any] | None:
    """Return the recommendation and the command that follows it; None where one method alone was measured."""
    found, settings = view.recommendation, view.results.settings
    if len(view.results.methods) == 1:
        return None
    name, command = found.method.lower(), None
    if name in methods():
        background = settings.get("background")
        options = "" if background is None else f" --background {background}"
        command = (
            f"segcal fit DATA --method {name}{options} --out {name}/ && segcal apply {name}/ DATA --out calibrated/"
        )
    sentences = [sentence for sentence in (found.reason, *found.worse, found.costs) if sentence]
    return {"sentences": sentences, "command": command}


def _card(view: View, metric: str, region: str) -> dict[str, Any] | None:
    rows = []
    for method in view.results.methods:
        if (value := view.value(method, metric, region)) is not None:
            floor = view.floor(method, region) if metric == "ece" else None
            numbers = (short(value.value), short(value.low), short(value.high), None if floor is None else short(floor))
            rows.append(dict(zip(("value", "low", "high", "floor"), numbers, strict=True), name=method))
    if not rows:
        return None
    over = "mean over images" if region == "local-max" else average_in_words(view.results)
    return {"metric": metric, "region": region, "over": over, "rows": rows}


def _facts(view: View) -> list[str]:
    """Return date, images, pixels, classes and version."""
    results, settings = view.results, view.results.settings
    pooled = results.pooled()
    rows = pooled[(pooled.region == "all") & (pooled.method == results.baseline)]
    facts = [
        settings.get("date"),
        counted(len(view.cases), "image"),
        f"{int(rows['pixels'].iloc[0]):,} pixels in All" if len(rows) else None,
        f"{settings['num_classes']} {'channels' if results.channels else 'classes'}",
        f"segcal {settings['segcal']}" if "segcal" in settings else None,
    ]
    return [fact for fact in facts if fact]
