"""The headline: how miscalibrated the network is and how much the best method mends, in sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from segcal.evaluation.results import Results

_BALANCED = 0.005  # of mean confidence minus accuracy


def best_method(results: Results) -> str:
    """The method of least ECE in *All*: over all pixels, or over images where nothing was pooled."""
    pooled = results.pooled()
    rows = pooled[(pooled.metric == "ece") & (pooled.region == "all")].dropna(subset=["value"])
    if not len(rows):
        return results.baseline
    return str(rows.sort_values("value", kind="stable").iloc[0]["method"])


def headline(results: Results) -> list[str]:
    """Sentences, the most important first."""
    sentences = [_state(results), *_gain(results), *_local(results), *_floor(results)]
    return [sentence for sentence in sentences if sentence]


def _state(results: Results) -> str:
    curve = curve_of(results, results.baseline)
    if curve is None or not curve["count"].sum():
        return f"{results.baseline} was measured on {results.settings['num_classes']} classes."
    pixels = curve["count"].sum()
    confidence, accuracy = curve["confidence"].sum() / pixels, curve["hit"].sum() / pixels
    worst = int(np.argmax((curve["confidence"] - curve["hit"]).abs()))
    says, right = (float(curve[name].iloc[worst] / curve["count"].iloc[worst]) for name in ("confidence", "hit"))
    example = f"where it says {_share(says)} it is right {_share(right)} of the time"
    if abs(confidence - accuracy) < _BALANCED:
        return f"The network is balanced on the whole, but {example}."
    kind = "overconfident" if confidence > accuracy else "underconfident"
    return f"The network is {kind}: {example}."


def _gain(results: Results) -> list[str]:
    baseline, best = results.baseline, best_method(results)
    before = _pooled(results, baseline)
    if before is None:
        return []
    if len(results.methods) == 1:
        return [f"Its ECE in All is {_interval(before)}."]
    if best == baseline:
        return [f"No method here betters its ECE in All, {_interval(before)}."]
    after = _pooled(results, best)
    sentence = f"{best} cuts its ECE in All from {_interval(before)} to {_interval(after)}"
    cell = results.table(reference=best, test="wilcoxon").cells[(baseline, "ece", "all")]
    sure = "significantly better image by image" if cell.beaten else "not significantly better image by image"
    return [f"{sentence}, {sure} (Wilcoxon, Benjamini-Hochberg at 0.05)."]


def _local(results: Results) -> list[str]:
    frame, best = results.to_frame(), best_method(results)
    rows = frame[(frame.metric == "ece") & (frame.region == "local-max")]
    means = rows.groupby("method")["value"].mean()
    if not len(means) or np.isnan(means[results.baseline]):
        return []
    sentence = f"In the worst patch of an image the ECE of {results.baseline} is {_percent(means[results.baseline])}"
    if best == results.baseline:
        return [f"{sentence} on average."]
    return [f"{sentence} on average, and that of {best} {_percent(means[best])}."]


def _floor(results: Results) -> list[str]:
    if results.redrawn is None:
        return []
    best = best_method(results)
    value = _pooled(results.redrawn, best)
    if value is None:
        return []
    return [f"If the probabilities of {best} were exactly right, its ECE in All would be {_percent(value['value'])}."]


def curve_of(results: Results, method: str, region: str = "all", label: str = "") -> pd.DataFrame | None:
    """The reliability diagram over all pixels, a row for each bin; None where none was kept."""
    if results.curve_frame is None:
        return None
    curves = results.curve_frame
    return curves[(curves.method == method) & (curves.region == region) & (curves.label == label)]


def _pooled(results: Results, method: str) -> Any:
    pooled = results.pooled()
    rows = pooled[(pooled.method == method) & (pooled.region == "all") & (pooled.metric == "ece")]
    return rows.iloc[0] if len(rows) and not np.isnan(rows.iloc[0]["value"]) else None


def _interval(row: Any) -> str:
    text = _percent(row["value"])
    if np.isnan(row["low"]):
        return text
    return f"{text} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}\u00a0%"


def _share(value: float) -> str:
    return f"{value:.2f}"
