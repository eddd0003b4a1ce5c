"""Limits of calibration: the ECE and NLL that temperatures chosen with the labels would reach.

An oracle chooses the temperature of least NLL (Theorem 1) for ever smaller sets of pixels. If a finer level scores
little better than a coarser one, no calibrator gains much by adapting to it; if it scores much better, there is
something to gain for a calibrator that can predict those temperatures from the scores. The floor is what a perfectly
calibrated network would score on as many pixels: labels are drawn from the probabilities.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import pandas as pd
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from segcal.cases import CaseStream
from segcal.evaluation.protocol import Protocol
from segcal.evidence import Evidence, read
from segcal.functional.context import REACH, changes, distance
from segcal.functional.draws import draw_labels, generator_of
from segcal.functional.probability import at_least_float32, predicted_labels
from segcal.functional.temperature import likelihood, optimal_inverse_temperatures
from segcal.kernels.constants import DOUBLINGS
from segcal.tables.numbers import number, percent, with_unit
from segcal.tables.text_table import TextTable
from segcal.types import Case, InputError

LEVELS = {
    "uncalibrated": "the scores as they are",
    "dataset": "one temperature for all pixels",
    "class": "one for each predicted class",
    "distance": "one for each distance from the nearest predicted boundary, in doublings of pixels",
    "image": "one for each image",
    "image and class": "one for each predicted class of each image",
    "floor": "labels drawn from the probabilities of the level 'dataset': what perfect calibration scores",
}
"""The levels, from coarse to fine, and what shares a temperature at each."""

_POOLED = ("dataset", "class", "distance")
_OWN = ("image", "image and class")
_BOUNDS = (0.05, 100.0)
_WORTHWHILE = 0.01  # relative decrease of NLL below which a finer level is not worth it


def limits(cases: Iterable[Case], protocol: Protocol) -> pd.DataFrame:
    """Return the ECE and NLL of each level in the region *All*, pooled over all cases: columns level, metric, value.

    Temperatures are found exactly, slab by slab, and kept between 0.05 and 100.

    Args:
        cases: With labels; gone through about ten times.
        protocol: The classes, ignored labels and background, the bins of the ECE, and the seed of the labels that are
            drawn for the floor; of one sigmoid channel, that of its head (`segcal.evaluation.methods.heads_of`).
    """
    num_classes, ignored, background = protocol.num_classes, protocol.ignore_index, protocol.background
    stream = CaseStream(cases, num_classes, ignore_index=ignored, background=background, images=False)
    pooled = _temperatures(stream, _POOLED)
    evidence = {level: Evidence.zeros(1, num_classes, protocol.bins) for level in LEVELS}
    for k in range(len(stream)):
        case = stream.part([k])
        random = generator_of(protocol.seed, case[0].name)
        inverse = {**pooled, **_temperatures(case, _OWN)}
        for logits, labels, groups in _slabs(case, (*_POOLED, *_OWN)):
            shared = logits * inverse["dataset"].to(logits.dtype)
            scaled = {level: logits * inverse[level].to(logits.dtype)[group] for level, group in groups.items()}
            for level, scores in {"uncalibrated": logits, **scaled}.items():
                _add(evidence[level], scores, labels)
            _add(evidence["floor"], shared, draw_labels(shared, labels, random))
    found = {level: read(own[0], ("ece", "nll")) for level, own in evidence.items()}
    if not found["dataset"]["pixels"]:
        raise InputError("no labelled pixel to measure; check ignore_index, background and the labels")
    rows = [(level, name, float(own[name])) for level, own in found.items() for name in ("ece", "nll")]
    return pd.DataFrame(rows, columns=["level", "metric", "value"])


def _slabs(
    stream: CaseStream, levels: Collection[str]
) -> Iterator[tuple[Float[Tensor, "L N"], Int64[Tensor, " N"], dict[str, Int64[Tensor, " N"]]]]:
    """Yield logits, labels and, for each level, the number of the temperature of the labelled pixels of slabs."""
    for slab in stream.slabs(REACH if "distance" in levels else 0):
        assert slab.labels is not None  # or the stream would have raised
        labels = slab.labels[0, slab.inner].flatten()
        index = (labels >= 0).nonzero().squeeze(1)
        if not len(index):
            continue
        predicted = predicted_labels(slab.logits)
        zero, of_class = torch.zeros(len(index), dtype=torch.int64), predicted[0, slab.inner].flatten()[index]
        groups = {"dataset": zero, "class": of_class, "image": zero, "image and class": of_class}
        if "distance" in levels:
            steps = distance(changes(predicted).float())[0, slab.inner].long()
            groups["distance"] = steps.flatten()[index]
        logits = at_least_float32(slab.logits[0, :, slab.inner]).flatten(1)[:, index]
        yield logits, labels[index], {level: groups[level] for level in levels}


def _temperatures(stream: CaseStream, levels: Collection[str]) -> dict[str, Float64[Tensor, " G"]]:
    """Return the inverse temperatures of least NLL of each level, all found at once."""
    many = {"class": stream.num_classes, "image and class": stream.num_classes, "distance": DOUBLINGS + 2}
    counts = [many.get(level, 1) for level in levels]

    def at(alphas: Float64[Tensor, " N"]) -> Float64[Tensor, "N 6"]:
        parts = dict(zip(levels, torch.split(alphas, counts), strict=True))
        total = torch.zeros(len(alphas), 6, dtype=torch.float64)
        for logits, labels, groups in _slabs(stream, levels):
            total += torch.cat([_sums(logits, labels, groups[level], parts[level]) for level in levels])
        return total

    alphas, _, _ = optimal_inverse_temperatures(at, sum(counts))
    low, high = _BOUNDS
    return dict(zip(levels, torch.split(alphas.clamp(1 / high, 1 / low), counts), strict=True))


def _sums(logits: Tensor, labels: Tensor, group: Tensor, alphas: Tensor) -> Float64[Tensor, "G 6"]:
    """Return the sums of `Likelihood` for the pixels of each group, at an inverse temperature of its own."""
    result = torch.zeros(len(alphas), 6, dtype=torch.float64)
    for g in torch.bincount(group, minlength=len(alphas)).nonzero().squeeze(1).tolist():
        own = (group == g).nonzero().squeeze(1)
        whole = len(own) == len(group)
        z, y = (logits, labels) if whole else (logits[:, own].contiguous(), labels[own])
        result[g] = torch.tensor(likelihood(z, y, float(alphas[g])), dtype=torch.float64)
    return result


def _add(evidence: Evidence, logits: Float[Tensor, "L N"], labels: Int64[Tensor, " N"]) -> None:
    evidence.add(logits[None], labels[None], torch.ones(1, 1, len(labels), dtype=torch.bool))


def verdict(table: pd.DataFrame) -> str:
    """Return, in one sentence, what a better calibrator could still gain, judged by NLL, which the oracle minimises."""
    scores = {(row["level"], row["metric"]): row["value"] for row in table.to_dict(orient="records")}
    ece, floor, nll = scores["dataset", "ece"], scores["floor", "ece"], scores["dataset", "nll"]
    best = min(("class", "distance", "image"), key=lambda level: scores[level, "nll"])
    errors = f"an ECE of {with_unit('ece', ece)} (floor {with_unit('ece', floor)})"
    reached = f"One temperature reaches an NLL of {number('nll', nll)} and {errors}"
    gain = (nll - scores[best, "nll"]) / nll if nll > 0 else 0.0
    if gain > _WORTHWHILE:
        return (
            f"{reached}; the best one for each {best} would lower the NLL by {percent(gain, 1)}, if it could be "
            "predicted from the scores."
        )
    if ece - floor <= 0.1 * ece:
        return f"{reached}: little is left to gain."
    return (
        f"{reached}, and none for each class, distance or image lowers the NLL by more than {percent(_WORTHWHILE)}: "
        "information other than temperatures is needed."
    )


def limits_table(table: pd.DataFrame) -> TextTable:
    """Return ECE and NLL of each level, which pixels share a temperature at it, and what follows."""
    found = {(row["level"], row["metric"]): row["value"] for row in table.to_dict(orient="records")}
    rows = [
        (level, number("ece", found[level, "ece"]), number("nll", found[level, "nll"]), text)
        for level, text in LEVELS.items()
    ]
    return TextTable(("Oracle for", "ECE, %", "NLL", ""), rows, "What limits calibration", verdict(table))
