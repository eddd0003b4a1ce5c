"""Summary: what was measured, how badly the network is calibrated, what helps, and what is noise."""

from __future__ import annotations

from collections.abc import Sequence
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
    floor = ece.floor or 0.0
    if ece.low <= floor:
        return "well calibrated"
    return next((band for end, band in BANDS if ece.value - floor < end), "severely")


def summary(view: View) -> dict[str, Any]:
    """Return two sentences, facts, warnings and what to do."""
    results, ece = view.results, _error(view)
    state, best, *more = headline(view)
    hidden = ece is None or "unnamed_background" in results.settings
    return {
        "dataset": results.settings.get("dataset"),
        "state": state,
        "best": best,
        "more": more,
        "advice": _advice(view),
        "severity": None if ece is None or hidden else severity_of(ece),
        "facts": _facts(view),
        "warnings": list(results.settings["warnings"]),
        "titles": method_titles(results.methods),
        "regions": region_notes(results.regions, whole=results.is_whole),
    }


def _error(view: View) -> Value | None:
    """Return the ECE of the baseline in *All*; None where no pixel was measured."""
    baseline = view.results.baseline
    return view.value(baseline, "ece") if curve_of(view.results, baseline)["count"].sum() else None


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
    further = [sentence for part in (_ece, _harm, _test, _local, _floor) for sentence in part(view)]
    return [state, _best(view), *error, *further]


def spelled(method: str) -> str:
    """Return a method as at its first mention: `TS (temperature scaling)`."""
    title = method_titles([method]).get(method)
    return method if title is None else f"{method} ({title})"


def _state(view: View) -> list[str]:
    """Return how the network is calibrated, without a class that is probably the background too, and its ECE."""
    results, ece = view.results, _error(view)
    if ece is None:
        return [f"{spelled(results.baseline)} was measured on {results.settings['num_classes']} classes."]
    subject, sentence = "The network is", _calibration(view, ece)
    if (about := results.settings.get("unnamed_background")) is not None:
        subject = f"Including class '{about['name']}', the network is" if about.get("name") else subject
        covered, without = percent(about["fraction"]), with_unit("ece", about["scores"][results.baseline]["ece"])
        sentence += f" Without this class, which covers {covered} of the pixels, its ECE is {without}."
    above = "" if ece.floor is None else f" Its floor is {with_unit('ece', ece.floor)}."
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
    single, overall = severity_of(ece), severity_of(view.value(baseline, "ece", average="pixels") or ece)
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
    cells = view.cells[results.presentation.average]
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
    ece = view.value(best, "ece")
    if ece is None or ece.floor is None or best == view.results.baseline:
        return []
    floor = with_unit("ece", ece.floor)
    return [f"If the probabilities of {best} were exactly right, its ECE in All would be {floor}."]


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
