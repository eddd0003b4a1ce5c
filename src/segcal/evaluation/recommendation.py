"""Recommendation of a method: the one function whose answer the page, the commands, the demo and the docs quote.

Methods are judged by proper scores, which cannot be improved by moving probabilities away from what they should be; a
low ECE alone recommends nothing. A method is recommended if its NLL is lower than that of the baseline by a thousandth
and by more than noise over images or groups, and its Brier score is not higher by more than noise. Among methods within
noise of the lowest NLL, one that keeps the labels is preferred, then the one with the fewest learned values.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from segcal.calibrators import method_titles
from segcal.evaluation.methods import shared_in_words
from segcal.evaluation.results import Results
from segcal.functional.catalogue import CATALOGUE
from segcal.regions import region_title
from segcal.statistics import weighted_ratio
from segcal.statistics.selection import WORTH
from segcal.tables import class_errors
from segcal.tables.numbers import percent, with_unit
from segcal.text import counted

_WORSE = (("ece", "all"), ("ece", "boundary"), ("ece", "local-max"), ("mce", "local-max"), ("accuracy", "all"))
"""Metrics and regions in which a recommended method is checked for having become worse."""
_CLASS_RISE = 0.01  # rise of the ECE of a class from which it is named
_VOLUME_RISE = 0.1  # rise of the error of the expected volume of a class from which it is named


class ScoreDifference(NamedTuple):
    """Mean of a metric of one method minus that of another on the same images, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def is_higher(self) -> bool:
        """Return whether the metric is higher by more than noise."""
        return self.value > 0 and not self.is_noise

    @property
    def is_noise(self) -> bool:
        """Return whether the interval holds 0; without an interval (one image) any difference may be noise."""
        return bool(np.isnan(self.low) or self.low <= 0 <= self.high)


@dataclass(frozen=True)
class Recommendation:
    """The recommended method, with its reason.

    Attributes:
        method: Its name; the baseline where no method is better.
        baseline: The method that it is compared with.
        reason: Why, in a sentence.
        worse: What became worse, a sentence each.
        costs: What it costs, in a sentence; "" where nothing is known.
    """

    method: str
    baseline: str
    reason: str
    worse: tuple[str, ...] = ()
    costs: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.reason, *self.worse, self.costs) if part)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def recommend(results: Results) -> Recommendation:
    """Return the method that the results recommend."""
    baseline = results.baseline
    others = [method for method in results.methods if method != baseline]
    gains = {method: difference(results, method, baseline, "nll") for method in others}
    worth = WORTH * _mean(results, baseline, "nll", "all")
    better = [
        method
        for method, gain in gains.items()
        if gain.value < -worth and not gain.is_noise and not difference(results, method, baseline, "brier").is_higher
    ]
    if not better:
        return Recommendation(baseline, baseline, _why_none(baseline, gains))
    best = min(better, key=lambda method: gains[method].value)
    close = [method for method in better if method == best or difference(results, method, best, "nll").is_noise]
    fits = results.settings.get("fits", {})
    own = {name: fits.get(name, {}) for name in close}
    method = min(close, key=lambda k: (not own[k].get("preserves_labels", True), own[k].get("learned", np.inf)))
    rivals = [name for name in close if name != method]
    title = method_titles(results.methods).get(method)
    spelled = f"{method} ({title})" if title else method
    reason = f"Use {spelled}: {_in_words(results, method, baseline, gains[method])}."
    if rivals:
        reason += f" {', '.join(rivals)} {'is' if len(rivals) == 1 else 'are'} within noise of it and no simpler."
    if shared := fits.get(method, {}).get("shared_cases"):
        reason += (
            f" {method} was fitted on {shared_in_words(shared, len(results.cases()))}: confirm this on other images."
        )
    return Recommendation(method, baseline, reason, tuple(_worse(results, method)), _costs(fits, method))


def difference(
    results: Results, method: str, other: str, metric: str = "nll", region: str = "all", *, by_pixels: bool = False
) -> ScoreDifference:
    """Return by how much the mean of a metric of `method` exceeds that of `other`, paired by image.

    With `by_pixels` images count by their pixels, which for NLL gives the value of all pixels together.
    """
    drawing, frame = results.drawing(), results.frame
    rows = frame[(frame.region == region) & (frame.metric == metric)]
    ours, theirs = (
        rows[rows.method == name].set_index("case").reindex(list(drawing.cases)) for name in (method, other)
    )
    gaps = (ours["value"] - theirs["value"]).to_numpy(np.float64)
    weights = np.where(np.isnan(gaps), 0.0, ours["pixels"].to_numpy(np.float64) if by_pixels else 1.0)
    columns = (weights * np.nan_to_num(gaps))[:, np.newaxis], weights[:, np.newaxis]
    mean = partial(weighted_ratio, totals=columns[0], counts=columns[1])
    low, high = drawing.intervals(mean)
    return ScoreDifference(float(mean(np.ones((1, len(gaps))))[0, 0]), float(low[0]), float(high[0]))


def _mean(results: Results, method: str, metric: str, region: str) -> float:
    frame = results.frame
    rows = frame[(frame.method == method) & (frame.region == region) & (frame.metric == metric)]
    known = rows["value"].dropna().to_numpy(np.float64)
    return float(known.mean()) if known.size else float("nan")


def _in_words(results: Results, method: str, baseline: str, gain: ScoreDifference) -> str:
    before, after = (_mean(results, name, "nll", "all") for name in (baseline, method))
    number = CATALOGUE["nll"].number
    changes = [
        f"{CATALOGUE[metric].title} {with_unit(metric, old)} to {with_unit(metric, new)}"
        for metric in ("brier", "ece")
        if not np.isnan(old := _mean(results, baseline, metric, "all"))
        and not np.isnan(new := _mean(results, method, metric, "all"))
    ]
    also = f"; {', '.join(changes)}" if changes else ""
    return (
        f"it lowers the NLL of {baseline} by {percent((before - after) / before, 1)}, from {number(before)} to "
        f"{number(after)} (95 % interval of the difference {number(gain.low)} to {number(gain.high)}{also})"
    )


def _why_none(baseline: str, gains: dict[str, ScoreDifference]) -> str:
    if not gains:
        return f"No method was compared with {baseline}."
    number, least = CATALOGUE["nll"].number, min(gains.values(), key=lambda gain: gain.value)
    interval = "" if np.isnan(least.low) else f", 95 % interval {number(least.low)} to {number(least.high)}"
    return (
        f"Keep {baseline}: no method lowers its NLL by more than noise without raising its Brier score (largest change "
        f"{number(least.value)}{interval})."
    )


def _worse(results: Results, method: str) -> list[str]:
    """Return what the method makes worse than the baseline: regions beyond noise, and the ECE of classes."""
    found, baseline = list[str](), results.baseline
    for metric, region in _WORSE:
        if region not in results.regions:
            continue
        gap = difference(results, method, baseline, metric, region)
        worse = gap.value < 0 if CATALOGUE[metric].higher_is_better else gap.value > 0
        if worse and not gap.is_noise:
            old, new = (with_unit(metric, _mean(results, name, metric, region)) for name in (baseline, method))
            verb = "lowers" if CATALOGUE[metric].higher_is_better else "raises"
            found.append(f"It {verb} the {CATALOGUE[metric].title} in {region_title(region)} from {old} to {new}.")
    before, after = (class_errors(results.curve_frame, name) for name in (baseline, method))
    risen = {name: (before[name], value) for name, value in after.items() if value - before[name] > _CLASS_RISE}
    for name, errors in sorted(risen.items(), key=lambda item: item[1][0] - item[1][1])[:3]:
        old, new = (with_unit("ece", error) for error in errors)
        found.append(f"It raises the ECE of pixels predicted as '{name}' from {old} to {new}.")
    return [*found, *_worse_volumes(results, method)]


def _worse_volumes(results: Results, method: str) -> list[str]:
    """Return the classes whose expected volume the method moves away from the true one."""
    bias = results.volume_bias().pivot(index="label", columns="method", values="bias")
    moved = (bias[method].abs() - bias[results.baseline].abs()).sort_values(ascending=False, kind="stable")
    return [
        f"It changes the error of the expected volume of '{name}' from {100 * bias[results.baseline][name]:+.1f} % to "
        f"{100 * bias[method][name]:+.1f} %."
        for name in moved.index[moved > _VOLUME_RISE][:3]
    ]


def _costs(fits: Any, method: str) -> str:
    fit = fits.get(method)
    if not fit or "learned" not in fit:
        return ""
    moved = percent(fit["changed"], 2) if "changed" in fit else "some"
    keeps = (
        "every predicted label is kept" if fit.get("preserves_labels") else f"{moved} of the predicted labels change"
    )
    return f"Cost: {fit['seconds']:.3g} s of fitting, {counted(fit['learned'], 'learned value')}; {keeps}."
