"""`decide`: held-out cases -> thresholds with a guarantee, risk against coverage, volumes with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64

from segcal.calibrators import Calibrator
from segcal.evaluation.decisions.counts import Counts, thresholds
from segcal.evaluation.decisions.model import Decisions
from segcal.evaluation.decisions.volumes import volume_tables
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
from segcal.types import Case, IgnoreIndex, InputError

COVERAGES = np.arange(1, 101) / 100
"""At which the curves are given."""

_THRESHOLD_COLUMNS = [
    "method", "label", "risk", "threshold", "missed", "left_out", "precision", "size", "by_label",
    "images", "groups", "needed",
]  # fmt: skip


def decide(
    cases: Iterable[Case],
    calibrators: Mapping[str, Calibrator | None],
    *,
    num_classes: int,
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
        calibrators: Fitted calibrators by name; None stands for the uncalibrated scores.
        num_classes: Number of classes L.
        ignore_index: Label, or labels, left out.
        background: Class outside the region *All*, in which risk against coverage is measured.
        risk: Share of the pixels of a class that the threshold of that class may miss, on average over new images
            that contain the class.
        level: Share of new images whose true volume lies inside the interval.
        class_names: Names of the classes; their numbers by default.
    """
    for name, value in (("risk", risk), ("level", level)):
        if not 0 < value < 1:
            raise InputError(f"{name} must lie between 0 and 1, got {value}")
    if num_classes < 2:
        raise InputError(f"decisions need at least two classes, got num_classes={num_classes}")
    if not calibrators:
        raise InputError('at least one method is needed, got none; {"UC": None} uses the uncalibrated scores')
    names = Protocol(num_classes, class_names=class_names).names
    counts = _count(cases, calibrators, num_classes, ignore_index, background)
    first = next(iter(counts.values())).cases
    limits = [row for method, own in counts.items() for row in _thresholds(method, own, names, risk)]
    curves, selective = _selective(counts)
    intervals, volumes = volume_tables(counts, names, level)
    settings: dict[str, Any] = {
        "methods": list(calibrators),
        "class_names": list(names),
        "ignore_index": list(ignored_labels(ignore_index)),
        "background": background,
        "risk": risk,
        "level": level,
        "cases": [case.name for case in first],
        "groups": [case.group for case in first],
        "warnings": _fitted_on(calibrators, [case.name for case in first]),
    }
    table = pd.DataFrame(limits, columns=_THRESHOLD_COLUMNS)
    return Decisions(table, curves, selective, intervals, volumes, settings)


def _count(
    cases: Iterable[Case],
    calibrators: Mapping[str, Calibrator | None],
    num_classes: int,
    ignore_index: IgnoreIndex,
    background: int | None,
) -> dict[str, Counts]:
    counts = {method: Counts(num_classes) for method in calibrators}
    seen: set[str] = set()
    for case in cases:
        if case.name in seen:
            raise InputError(f"case names must be unique, got '{case.name}' twice; rename one")
        seen.add(case.name)
        for method, calibrator in calibrators.items():
            counts[method].add(case, calibrator, ignore_index, background)
    if not seen:
        raise InputError("at least one case is needed, got none; is the folder or the split empty?")
    return counts


def _fitted_on(calibrators: Mapping[str, Calibrator | None], names: Sequence[str]) -> list[str]:
    """Return a warning for each calibrator that was fitted on some of the cases: its rules then promise too much."""
    reports = {name: getattr(calibrator, "fit_report_", None) for name, calibrator in calibrators.items()}
    shared = {name: set(report.names) & set(names) for name, report in reports.items() if report is not None}
    return [
        f"{name} was fitted on {len(both)} of these {len(names)} cases: its rules promise too much; use other cases"
        for name, both in shared.items()
        if both
    ]


def _thresholds(method: str, counts: Counts, names: Sequence[str], risk: float) -> Iterable[tuple[Any, ...]]:
    """Yield the threshold of each class by conformal risk control of the share of its pixels that are missed."""
    tried = thresholds()
    for label, name in enumerate(names):
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


def _selective(counts: Mapping[str, Counts]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return risk against coverage, and its area, when single pixels and when whole images are rejected."""
    curves, areas = [], []
    for method, own in counts.items():
        images = [case for case in own.cases if case.pixels]
        errors = np.array([case.error for case in images], dtype=np.float64)
        blocks = {
            "pixels": blocks_of_cells(own.cells),
            "images": blocks_of(np.array([case.confidence for case in images], dtype=np.float64), errors),
        }
        for unit, found in blocks.items():
            rows = zip(COVERAGES.tolist(), *(v.tolist() for v in risk_coverage(found, COVERAGES)), strict=True)
            curves += [(method, unit, *row) for row in rows]
        areas.append((method, "pixels", *_pixel_areas(blocks["pixels"])))
        areas.append((method, "images", *_image_areas(blocks["images"], errors)))
    return (
        pd.DataFrame(curves, columns=["method", "unit", "coverage", "risk", "confidence"]),
        pd.DataFrame(areas, columns=["method", "unit", "aurc", "low", "high", "excess", "risk", "count"]),
    )


def _pixel_areas(blocks: Blocks) -> tuple[float, ...]:
    """Return AURC, the bounds of its exact value, its excess over a perfect order, the whole risk, and the number."""
    count = int(blocks.number.sum())
    return aurc(blocks), *aurc_bounds(blocks), excess_aurc(blocks), blocks.loss.sum() / max(count, 1), count


def _image_areas(blocks: Blocks, errors: Float64[np.ndarray, " N"]) -> tuple[float, ...]:
    """Return the same for whole images, whose order is known exactly."""
    area, best = aurc(blocks), aurc(blocks_of(-errors, errors))
    return area, area, area, area - best, errors.sum() / max(len(errors), 1), len(errors)
