"""Summary: what was measured, how badly the network is calibrated, what helps, and what is noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan
from typing import Any, Literal, get_args

import numpy as np

from segcal.calibrators import method_titles, methods
from segcal.regions import region_notes
from segcal.report.view import Value, View, curve_of
from segcal.tables.numbers import percent, with_unit
from segcal.text import counted

_DIRECTIONS = {-1: "underconfident", 0: "miscalibrated", 1: "overconfident"}
_ONE_SIDED = 0.5  # share of the ECE that must point in one direction, or the network is both over- and underconfident
_LOST = 0.001  # of accuracy, which a method that changes labels may lose without being named for it

Severity = Literal["well calibrated", "slightly", "clearly", "severely"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From the mildest to the worst."""

BANDS: tuple[tuple[float, Severity], ...] = ((0.01, "well calibrated"), (0.03, "slightly"), (0.08, "clearly"))
"""Upper ends of the bands of the ECE in *All* above its floor; beyond the last one it is "severely"."""


def severity_of(ece: Value) -> Severity:
    """Return the band of an ECE above its floor; "well calibrated" too where the interval reaches the floor.

    Examples:
        >>> severity_of(Value("ece", 0.12, 0.1, 0.14)), severity_of(Value("ece", 0.02, 0.004, 0.03, floor=0.005))
        ('severely', 'well calibrated')
    """
    floor = 0.0 if isnan(ece.floor) else ece.floor
    if ece.low <= floor:
        return "well calibrated"
    return next((band for end, band in BANDS if ece.value - floor < end), "severely")


def summary(view: View) -> dict[str, Any]:
    """Return two sentences, facts, warnings and what to do."""
    results = view.results
    state, best, *more = headline(view)
    hidden = not _measured(view) or "unnamed_background" in results.settings
    return {
        "dataset": results.settings.get("dataset"),
        "state": state,
        "best": best,
        "more": more,
        "advice": _advice(view),
        "severity": None if hidden else severity_of(view.value(results.baseline, "ece")),
        "facts": _facts(view),
        "warnings": list(results.settings["warnings"]),
        "titles": method_titles(results.methods),
        "regions": region_notes(results.regions, whole=results.is_whole),
    }


def _measured(view: View) -> bool:
    """Return whether any pixel of *All* was measured."""
    return bool(curve_of(view.results, view.results.baseline)["count"].sum())


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
    return [state, _best(view), *error, *_compared(view), *_patches_and_floor(view)]


def spelled(method: str) -> str:
    """Return a method as at its first mention: `TS (temperature scaling)`."""
    title = method_titles([method]).get(method)
    return method if title is None else f"{method} ({title})"


def _state(view: View) -> list[str]:
    """Return how the network is calibrated, without a class that is probably the background too, and its ECE."""
    results, ece = view.results, view.value(view.results.baseline, "ece")
    if not _measured(view):
        return [f"{spelled(results.baseline)} was measured on {results.settings['num_classes']} classes."]
    subject, sentence = "The network is", _calibration(view, ece)
    if (about := results.settings.get("unnamed_background")) is not None:
        subject = f"Including class '{about['name']}', the network is" if about.get("name") else subject
        covered, without = percent(about["fraction"]), with_unit("ece", about["scores"][results.baseline]["ece"])
        sentence += f" Without this class, which covers {covered} of the pixels, its ECE is {without}."
    above = "" if isnan(ece.floor) else f" Its floor is {with_unit('ece', ece.floor)}."
    return [
        f"{subject} {sentence}",
        f"Its expected calibration error (ECE) in the region All is {ece} ({view.average}).{above}",
    ]


def _calibration(view: View, ece: Value) -> str:
    """Return a sentence on the calibration over all pixels, with numbers, and in single images if those are worse.

    Images that err in different directions hide one another over all pixels. The example is the bin that adds most to
    the ECE.
    """
    baseline = view.results.baseline
    curve = curve_of(view.results, baseline)
    gaps = curve["confidence"] - curve["hit"]
    direction = int(np.sign(gaps.sum())) if abs(gaps.sum()) > _ONE_SIDED * gaps.abs().sum() else 0
    sums, bin_ = curve[["confidence", "hit", "count"]].sum(), curve.iloc[int(np.argmax(gaps.abs()))]
    mean, example = ((part["confidence"] / part["count"], part["hit"] / part["count"]) for part in (sums, bin_))
    single, overall = severity_of(ece), severity_of(view.value(baseline, "ece", average="pixels"))
    words: str = overall
    numbers = "on average it says {:.2f} and is right {:.2f} of the time".format(*mean)
    if overall == "slightly":
        words = f"only slightly {_DIRECTIONS[direction]}"
    elif overall != "well calibrated":
        words = f"{overall} {_DIRECTIONS[direction]}{', in both directions' if direction == 0 else ''}"
        numbers = "where it says {:.2f} it is right {:.2f} of the time".format(*example)
    if SEVERITIES.index(single) > SEVERITIES.index(overall):
        return f"{words} over all pixels ({numbers}), but {single} miscalibrated in single images."
    return f"{words}: {numbers}."


def _best(view: View) -> str:
    """Return what the recommended method changes."""
    results, method = view.results, view.recommendation.method
    if method == results.baseline:
        return view.recommendation.reason if len(results.methods) > 1 else ""
    ece, nll = (
        f"from {view.value(results.baseline, m).short} to {view.value(method, m).short}" for m in ("ece", "nll")
    )
    return f"{spelled(method)} is recommended: it changes the ECE {ece} and the negative log-likelihood (NLL) {nll}."


def _compared(view: View) -> Iterator[str]:
    """Yield what speaks against the lowest ECE, which methods do harm, and whom the reference beats.

    An NLL that differs in digits that are not shown is not called higher: the sentence would contradict itself.
    """
    results, best = view.results, view.recommendation.method
    baseline, others = results.baseline, [method for method in results.methods if method != results.baseline]
    errors = {method: view.value(method, "ece") for method in results.methods}
    least = min(errors, key=lambda method: (isnan(errors[method].value), errors[method].value))
    own, nll, before = (view.value(method, "nll") for method in (best, least, baseline))
    if least != best and nll.short != own.short and not view.difference(least, best).is_noise:
        higher = nll.value > before.value and nll.short != before.short
        against = f"{own.short} of {best}" + (f" and even above {before.short} of {baseline}" if higher else "")
        lowest = f"{spelled(least)} has the lowest ECE, {errors[least].short}"
        yield f"{lowest}, but its NLL is {nll.short}, above {against}."
    if worse := [method for method in others if view.difference(method, baseline).low > 0]:
        yield f"{_listed(worse)} {'makes' if len(worse) == 1 else 'make'} the NLL worse than {baseline}."
    for method in others:
        kept, left = (view.value(name, "accuracy") for name in (baseline, method))
        if left.value < kept.value - _LOST:
            yield f"{method} changes predicted labels: accuracy falls from {kept.short} to {left.short}."
    reference, test = results.presentation.reference, results.presentation.test_sentence()
    if reference is not None and others:
        cells = view.cells[results.presentation.average]
        rest = [method for method in results.methods if method != reference]
        beaten = [method for method in rest if cells[(method, "ece", "all")].beaten]
        rest = [method for method in rest if method not in beaten]
        verb, than = ("has", _listed(beaten)) if beaten else ("does not have", "any other method")
        also = f", but not than {_listed(rest)}" if beaten and rest else ""
        yield f"The reference {reference} {verb} a significantly lower ECE in All than {than}{also} ({test})."


def _patches_and_floor(view: View) -> Iterator[str]:
    """Yield the ECE in the worst patches, and the floor of the recommended method."""
    baseline, best = view.results.baseline, view.recommendation.method
    before, after = (view.value(method, "ece", "local-max") for method in (baseline, best))
    if not isnan(before.value):
        improved = f" and that of {best} {after.short}" if best != baseline else ""
        yield f"In the worst patch of an image, the ECE of {baseline} is {before.short}{improved} (mean over images)."
    floor = view.value(best, "ece").floor
    if not isnan(floor) and best != baseline:
        yield f"If the probabilities of {best} were exactly right, its ECE in All would be {with_unit('ece', floor)}."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
