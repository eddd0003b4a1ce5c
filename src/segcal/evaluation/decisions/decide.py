"""`decide`: held-out cases -> thresholds with a guarantee, risk against coverage, volumes with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64

from segcal.cases import no_cases
from segcal.evaluation.decisions.counts import Counts, decided_classes, thresholds
from segcal.evaluation.decisions.model import TABLES, Decisions
from segcal.evaluation.decisions.volumes import volume_tables
from segcal.evaluation.methods import ExclusiveHead, Method, check_methods, heads_of, leaks, stream_for
from segcal.evaluation.protocol import Protocol
from segcal.functional.checks import ignored_labels
from segcal.functional.conformal import controlled_index, fewest_units, group_means, left_out_indices
from segcal.functional.selective import (
    Blocks,
    aurc,
    aurc_bounds,
    blocks_of,
    blocks_of_cells,
    excess_aurc,
    risk_coverage,
)
from segcal.statistics import clusters_of
from segcal.text import warn_caller
from segcal.types import Activation, Case, IgnoreIndex, InputError

COVERAGES = np.arange(1, 101) / 100
"""At which the curves are given."""


def decide(
    cases: Iterable[Case],
    calibrators: Mapping[str, Method],
    *,
    num_classes: int,
    activation: Activation | None = None,
    ignore_index: IgnoreIndex = None,
    background: int | None = None,
    risk: float = 0.1,
    level: float = 0.9,
    class_names: Sequence[str] | None = None,
) -> Decisions:
    """Learn rules for decisions from held-out cases, which neither network nor calibrator may have seen.

    Args:
        cases: Held-out cases from the same source as those to decide on; iterated once. Those of one group (a patient,
            a video) count as one.
        calibrators: Methods by name: fitted calibrators, functions from logits `[1, L, *S]` to calibrated logits, or
            None for the uncalibrated scores.
        num_classes: Number of classes L, or of sigmoid channels C.
        activation: "softmax" for exclusive classes; "sigmoid" for channels that may overlap, with labels `[C, *S]` of 0
            and 1 and rules for each channel. By default a softmax, or a sigmoid if `num_classes` is 1.
        ignore_index: Label, or labels, left out.
        background: Class outside the region *All*, in which risk against coverage is measured.
        risk: Share of the pixels of a class that the threshold of that class may miss, on average over new images
            that contain the class.
        level: Share of new images whose true volume lies inside the interval.
        class_names: Names of the classes or channels; their numbers by default.
    """
    for name, value in (("risk", risk), ("level", level)):
        if not 0 < value < 1:
            raise InputError(f"{name} must lie between 0 and 1, got {value}")
    if not calibrators:
        raise InputError('at least one method is needed, got none; {"UC": None} uses the uncalibrated scores')
    protocol = Protocol(
        num_classes, activation=activation, ignore_index=ignore_index, background=background, class_names=class_names
    )
    check_methods(calibrators, protocol)
    counts, doubts = _count(cases, calibrators, heads_of(protocol))
    first = next(iter(counts.values()))
    curves, selective = _selective(counts)
    intervals, volumes = volume_tables(counts, level)
    settings: dict[str, Any] = {
        "methods": list(calibrators),
        "class_names": [name for own in first for name in decided_classes(own.head).values()],
        "activation": protocol.activation,
        "ignore_index": list(ignored_labels(ignore_index)),
        "background": background,
        "risk": risk,
        "level": level,
        "cases": [case.name for case in first[0].cases],
        "groups": [case.group for case in first[0].cases],
        "warnings": doubts,
        "volume_unit": " or ".join(dict.fromkeys(case.unit for case in first[0].cases)),
    }
    for doubt in doubts:
        warn_caller(doubt)
    limits = [row for method, heads in counts.items() for own in heads for row in _thresholds(method, own, risk)]
    return Decisions(TABLES["thresholds"].frame(limits), curves, selective, intervals, volumes, settings)


def _count(
    cases: Iterable[Case], methods: Mapping[str, Method], heads: Sequence[ExclusiveHead]
) -> tuple[dict[str, list[Counts]], list[str]]:
    """Return the counts of each method and head, and warnings about the cases."""
    counts = {method: [Counts(head) for head in heads] for method in methods}
    content, doubts = dict[str, str](), dict[str, None]()
    for case in cases:
        if case.name in content:
            raise InputError(f"case names must be unique, got '{case.name}' twice; rename one")
        for k, head in enumerate(heads):
            stream = stream_for(head.protocol, head.case(case), methods.values())
            for name, method in methods.items():
                counts[name][k].add(stream[0], head.method(method, case))
            if k == 0:
                content[case.name] = stream.facts[0].fingerprint
                doubts |= dict.fromkeys(stream.doubts)
    if not content:
        raise no_cases(cases)
    return counts, [*doubts, *leaks(methods, content, "its guarantees are optimistic; use other cases")]


def _thresholds(method: str, counts: Counts, risk: float) -> Iterable[tuple[Any, ...]]:
    """Yield the threshold of each class by conformal risk control of the share of its pixels that are missed."""
    tried = thresholds()
    for label, name in decided_classes(counts.head).items():
        held, below = counts.true_below(label)
        nothing = (method, name, risk, 0.0, *(np.nan,) * 5, 0, 0, fewest_units(risk))
        if not held.size:
            yield nothing
            continue
        clusters = clusters_of([counts.cases[k].group for k in held])
        losses = group_means(below, clusters)
        chosen = max(0, controlled_index(losses, risk))
        others = np.maximum(0, left_out_indices(losses, risk))
        left_out = float(losses[np.arange(len(losses)), others].mean())
        kept, true = counts.above[label, chosen:].sum(), sum(int(counts.cases[k].support[label]) for k in held)
        hits = sum(int(s.pixels[s.step >= chosen].sum()) for s in (counts.cases[k].true[label] for k in held))
        found = np.array([[1 - counts.cases[k].found[label] / counts.cases[k].support[label]] for k in held])
        cost = (hits / kept if kept else np.nan, kept / true, float(group_means(found, clusters).mean()))
        reached = (float(tried[chosen]), float(losses[:, chosen].mean()), left_out)
        yield (method, name, risk, *reached, *cost, len(held), len(losses), fewest_units(risk))


def _selective(counts: Mapping[str, Sequence[Counts]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return risk against coverage, and its area, when single pixels and when whole images are rejected."""
    curves, areas = [], []
    for method, own in ((method, own) for method, heads in counts.items() for own in heads):
        images = [case for case in own.cases if case.pixels]
        errors = np.array([case.error for case in images], dtype=np.float64)
        blocks = {
            "pixels": blocks_of_cells(own.cells),
            "images": blocks_of(np.array([case.confidence for case in images], dtype=np.float64), errors),
        }
        key = (method, own.head.name)
        for unit, found in blocks.items():
            rows = zip(COVERAGES.tolist(), *(v.tolist() for v in risk_coverage(found, COVERAGES)), strict=True)
            curves += [(*key, unit, *row) for row in rows]
        areas.append((*key, "pixels", *_pixel_areas(blocks["pixels"])))
        areas.append((*key, "images", *_image_areas(blocks["images"], errors)))
    return TABLES["curves"].frame(curves), TABLES["selective"].frame(areas)


def _pixel_areas(blocks: Blocks) -> tuple[float, ...]:
    """Return AURC, the bounds of its exact value, its excess over a perfect order, the whole risk, and the number."""
    count = int(blocks.number.sum())
    return aurc(blocks), *aurc_bounds(blocks), excess_aurc(blocks), blocks.loss.sum() / max(count, 1), count


def _image_areas(blocks: Blocks, errors: Float64[np.ndarray, " N"]) -> tuple[float, ...]:
    """Return the same for whole images, whose order is known exactly."""
    area, best = aurc(blocks), aurc(blocks_of(-errors, errors))
    return area, area, area, area - best, errors.sum() / max(len(errors), 1), len(errors)
