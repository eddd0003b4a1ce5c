"""The headline: how badly the network is calibrated, what helps, and what is noise, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from segcal.calibrators import method_titles
from segcal.evaluation.results import Results
from segcal.report.scores import SEVERITIES, CalibrationState, MethodScores
from segcal.tables.numbers import percent, with_unit

_DIRECTIONS = {-1: "underconfident", 0: "miscalibrated", 1: "overconfident"}
_LOST = 0.001  # of accuracy, which a method that changes labels may lose without being named for it

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


def headline(scores: MethodScores) -> list[str]:
    """Return sentences: how the network is calibrated, what helps ("" if nothing was compared), and further ones."""
    state, *error = _state(scores)
    further = [sentence for part in (_ece, _harm, _test, _local, _floor) for sentence in part(scores)]
    return [state, _best(scores), *error, *further]


def spelled(method: str) -> str:
    """Return a method as at its first mention: `TS (temperature scaling)`."""
    title = method_titles([method]).get(method)
    return method if title is None else f"{method} ({title})"


def average_in_words(results: Results) -> str:
    """Return what metrics in *All* are averages over."""
    images = len(results.cases())
    if images == 1:
        return "1 image"
    return (
        f"mean over {images} images" if results.presentation.average == "images" else f"all pixels of {images} images"
    )


def _background(results: Results) -> str:
    """Return the ECE without a class that is probably the background, where nobody named it."""
    about = results.settings.get("unnamed_background")
    if about is None:
        return ""
    covered, ece = percent(about["fraction"]), with_unit("ece", about["scores"][results.baseline]["ece"])
    return f" Without this class, which covers {covered} of the pixels, its ECE is {ece}."


def _state(scores: MethodScores) -> list[str]:
    results = scores.results
    baseline = results.baseline
    state, ece = scores.state(baseline), scores.value(baseline, "ece")
    if state is None or ece is None:
        return [f"{spelled(baseline)} was measured on {results.settings['num_classes']} classes."]
    floor = scores.floor(baseline)
    name = results.settings.get("unnamed_background", {}).get("name")
    subject = "The network is" if name is None else f"Including class '{name}', the network is"
    above = "" if floor is None else f" Its floor is {with_unit('ece', floor)}."
    return [
        f"{subject} {_calibration(state)}{_background(results)}",
        f"Its expected calibration error (ECE) in the region All is {ece} ({average_in_words(results)}).{above}",
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


def _best(scores: MethodScores) -> str:
    """Return what the recommended method changes."""
    results, method = scores.results, scores.recommendation.method
    if len(results.methods) == 1:
        return ""
    pairs = [[scores.value(name, metric) for name in (results.baseline, method)] for metric in ("ece", "nll")]
    (ece, own_ece), (nll, own_nll) = pairs
    if method == results.baseline or ece is None or own_ece is None or nll is None or own_nll is None:
        return scores.recommendation.reason
    return (
        f"{spelled(method)} is recommended: it changes the ECE from {ece.short} to {own_ece.short} and the negative "
        f"log-likelihood (NLL) from {nll.short} to {own_nll.short}."
    )


def _ece(scores: MethodScores) -> list[str]:
    """Name the method of least ECE where it is not the recommended one, and what speaks against it.

    An NLL that differs in digits that are not shown is not called higher: the sentence would contradict itself.
    """
    results = scores.results
    best = scores.recommendation.method
    errors = {method: scores.value(method, "ece") for method in results.methods}
    known = {method: value for method, value in errors.items() if value is not None}
    if len(results.methods) == 1 or not known:
        return []
    least = min(known, key=lambda method: known[method].value)
    own, nll = scores.value(best, "nll"), scores.value(least, "nll")
    if least == best or own is None or nll is None or scores.difference(least, best).is_noise:
        return []
    baseline = scores.value(results.baseline, "nll")
    if nll.short == own.short:
        return []
    against = f"{own.short} of {best}"
    if baseline is not None and nll.value > baseline.value and nll.short != baseline.short:
        against += f" and even above {baseline.short} of {results.baseline}"
    return [f"{spelled(least)} has the lowest ECE, {known[least].short}, but its NLL is {nll.short}, above {against}."]


def _harm(scores: MethodScores) -> list[str]:
    """Name methods that make probabilities worse or lose accuracy."""
    results = scores.results
    baseline = results.baseline
    others = [method for method in results.methods if method != baseline]
    worse = [method for method in others if scores.difference(method, baseline).low > 0]
    sentences = []
    if worse:
        verb = "makes" if len(worse) == 1 else "make"
        sentences.append(f"{_listed(worse)} {verb} the NLL worse than {baseline}.")
    before = scores.value(baseline, "accuracy")
    for method in others:
        after = scores.value(method, "accuracy")
        if before is not None and after is not None and after.value < before.value - _LOST:
            sentences.append(f"{method} changes predicted labels: accuracy falls from {before.short} to {after.short}.")
    return sentences


def _test(scores: MethodScores) -> list[str]:
    """Say whom the chosen reference beats in ECE, by the chosen test."""
    results = scores.results
    reference = results.presentation.reference
    if reference is None or len(results.methods) == 1:
        return []
    cells = results.table().cells
    others = [method for method in results.methods if method != reference]
    beaten = [method for method in others if cells[(method, "ece", "all")].beaten]
    rest = [method for method in others if method not in beaten]
    than = f"than {_listed(beaten)}" if beaten else "than any other method"
    verb = "has" if beaten else "does not have"
    also = f", but not than {_listed(rest)}" if beaten and rest else ""
    test = results.presentation.test_sentence()
    return [f"The reference {reference} {verb} a significantly lower ECE in All {than}{also} ({test})."]


def _local(scores: MethodScores) -> list[str]:
    results = scores.results
    best = scores.recommendation.method
    before, after = (scores.value(method, "ece", "local-max") for method in (results.baseline, best))
    if before is None:
        return []
    sentence = f"In the worst patch of an image, the ECE of {results.baseline} is {before.short}"
    if best == results.baseline or after is None:
        return [f"{sentence} (mean over images)."]
    return [f"{sentence} and that of {best} {after.short} (mean over images)."]


def _floor(scores: MethodScores) -> list[str]:
    best = scores.recommendation.method
    floor = scores.floor(best)
    if floor is None or best == scores.results.baseline:
        return []
    return [f"If the probabilities of {best} were exactly right, its ECE in All would be {with_unit('ece', floor)}."]


def _share(value: float) -> str:
    return f"{value:.2f}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
