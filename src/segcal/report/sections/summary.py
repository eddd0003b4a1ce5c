"""Summary: what was measured, how badly the network is calibrated, what helps, and what is noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from segcal.calibrators import method_titles, methods
from segcal.evaluation.results import Results
from segcal.regions import region_notes
from segcal.report.view import SEVERITIES, CalibrationState, View, short
from segcal.tables.numbers import percent, with_unit
from segcal.text import counted

_CARDS = (("nll", "all"), ("ece", "all"), ("ece", "boundary"), ("ece", "local-max"))
_DIRECTIONS = {-1: "underconfident", 0: "miscalibrated", 1: "overconfident"}
_LOST = 0.001  # of accuracy, which a method that changes labels may lose without being named for it


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
    over = "mean over images" if region == "local-max" else view.average
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


def headline(view: View) -> list[str]:
    """Return sentences: how the network is calibrated, what helps ("" if nothing was compared), and further ones."""
    state, *error = _state(view)
    further = [sentence for part in (_ece, _harm, _test, _local, _floor) for sentence in part(view)]
    return [state, _best(view), *error, *further]


def spelled(method: str) -> str:
    """Return a method as at its first mention: `TS (temperature scaling)`."""
    title = method_titles([method]).get(method)
    return method if title is None else f"{method} ({title})"


def _background(results: Results) -> str:
    """Return the ECE without a class that is probably the background, where nobody named it."""
    about = results.settings.get("unnamed_background")
    if about is None:
        return ""
    covered, ece = percent(about["fraction"]), with_unit("ece", about["scores"][results.baseline]["ece"])
    return f" Without this class, which covers {covered} of the pixels, its ECE is {ece}."


def _state(view: View) -> list[str]:
    results = view.results
    baseline = results.baseline
    state, ece = view.state(baseline), view.value(baseline, "ece")
    if state is None or ece is None:
        return [f"{spelled(baseline)} was measured on {results.settings['num_classes']} classes."]
    floor = view.floor(baseline)
    name = results.settings.get("unnamed_background", {}).get("name")
    subject = "The network is" if name is None else f"Including class '{name}', the network is"
    above = "" if floor is None else f" Its floor is {with_unit('ece', floor)}."
    return [
        f"{subject} {_calibration(state)}{_background(results)}",
        f"Its expected calibration error (ECE) in the region All is {ece} ({view.average}).{above}",
    ]


def _calibration(state: CalibrationState) -> str:
    """Return a sentence on the calibration over all pixels, with numbers, and in single images if those are worse."""
    mean = f"on average it says {_share(state.confidence)} and is right {_share(state.accuracy)} of the time"
    example = f"where it says {_share(state.says)} it is right {_share(state.right)} of the time"
    if state.overall == "well calibrated":
        words, numbers = "well calibrated", mean
    elif state.overall == "slightly":
        words, numbers = f"only slightly {_DIRECTIONS[state.direction]}", mean
    else:
        both = ", in both directions" if state.direction == 0 else ""
        words, numbers = f"{state.overall} {_DIRECTIONS[state.direction]}{both}", example
    if SEVERITIES.index(state.severity) > SEVERITIES.index(state.overall):
        return f"{words} over all pixels ({numbers}), but {state.severity} miscalibrated in single images."
    return f"{words}: {numbers}."


def _best(view: View) -> str:
    """Return what the recommended method changes."""
    results, method = view.results, view.recommendation.method
    if len(results.methods) == 1:
        return ""
    pairs = [[view.value(name, metric) for name in (results.baseline, method)] for metric in ("ece", "nll")]
    (ece, own_ece), (nll, own_nll) = pairs
    if method == results.baseline or ece is None or own_ece is None or nll is None or own_nll is None:
        return view.recommendation.reason
    return (
        f"{spelled(method)} is recommended: it changes the ECE from {ece.short} to {own_ece.short} and the negative "
        f"log-likelihood (NLL) from {nll.short} to {own_nll.short}."
    )


def _ece(view: View) -> list[str]:
    """Name the method of least ECE where it is not the recommended one, and what speaks against it.

    An NLL that differs in digits that are not shown is not called higher: the sentence would contradict itself.
    """
    results = view.results
    best = view.recommendation.method
    errors = {method: view.value(method, "ece") for method in results.methods}
    known = {method: value for method, value in errors.items() if value is not None}
    if len(results.methods) == 1 or not known:
        return []
    least = min(known, key=lambda method: known[method].value)
    own, nll = view.value(best, "nll"), view.value(least, "nll")
    if least == best or own is None or nll is None or view.difference(least, best).is_noise:
        return []
    baseline = view.value(results.baseline, "nll")
    if nll.short == own.short:
        return []
    against = f"{own.short} of {best}"
    if baseline is not None and nll.value > baseline.value and nll.short != baseline.short:
        against += f" and even above {baseline.short} of {results.baseline}"
    return [f"{spelled(least)} has the lowest ECE, {known[least].short}, but its NLL is {nll.short}, above {against}."]


def _harm(view: View) -> list[str]:
    """Name methods that make probabilities worse or lose accuracy."""
    results = view.results
    baseline = results.baseline
    others = [method for method in results.methods if method != baseline]
    worse = [method for method in others if view.difference(method, baseline).low > 0]
    sentences = []
    if worse:
        verb = "makes" if len(worse) == 1 else "make"
        sentences.append(f"{_listed(worse)} {verb} the NLL worse than {baseline}.")
    before = view.value(baseline, "accuracy")
    for method in others:
        after = view.value(method, "accuracy")
        if before is not None and after is not None and after.value < before.value - _LOST:
            sentences.append(f"{method} changes predicted labels: accuracy falls from {before.short} to {after.short}.")
    return sentences


def _test(view: View) -> list[str]:
    """Say whom the chosen reference beats in ECE, by the chosen test."""
    results = view.results
    reference = results.presentation.reference
    if reference is None or len(results.methods) == 1:
        return []
    cells = view.cells(results.presentation.average)
    others = [method for method in results.methods if method != reference]
    beaten = [method for method in others if cells[(method, "ece", "all")].beaten]
    rest = [method for method in others if method not in beaten]
    than = f"than {_listed(beaten)}" if beaten else "than any other method"
    verb = "has" if beaten else "does not have"
    also = f", but not than {_listed(rest)}" if beaten and rest else ""
    test = results.presentation.test_sentence()
    return [f"The reference {reference} {verb} a significantly lower ECE in All {than}{also} ({test})."]


def _local(view: View) -> list[str]:
    results = view.results
    best = view.recommendation.method
    before, after = (view.value(method, "ece", "local-max") for method in (results.baseline, best))
    if before is None:
        return []
    sentence = f"In the worst patch of an image, the ECE of {results.baseline} is {before.short}"
    if best == results.baseline or after is None:
        return [f"{sentence} (mean over images)."]
    return [f"{sentence} and that of {best} {after.short} (mean over images)."]


def _floor(view: View) -> list[str]:
    best = view.recommendation.method
    floor = view.floor(best)
    if floor is None or best == view.results.baseline:
        return []
    return [f"If the probabilities of {best} were exactly right, its ECE in All would be {with_unit('ece', floor)}."]


def _share(value: float) -> str:
    return f"{value:.2f}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
