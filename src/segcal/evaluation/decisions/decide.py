"""`decide`: held-out cases -> thresholds with a guarantee, risk against coverage, volumes with intervals.

The probability of every class is counted into the 65,536 cells of `segcal.functional.scores`, eight of which make one
step of the thresholds. At every threshold the counts are exact, and so is the guarantee.

The expected volume of a class is the sum of its probabilities. Its error is not that of independent pixels: neighbours
are wrong together, so an interval from the variance of single pixels would be far too short. The interval is a
conformal one instead (Vovk et al. 2005; Papadopoulos et al. 2008 for its scale): the error of each held-out image is
divided by its uncertain volume, and a new image's interval reaches as many uncertain volumes to either side as all but
a share `1 - level` of them need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64, Int64, Shaped
from scipy.sparse import csr_array
from torch import Tensor

from segcal.cases import StreamedCase, no_cases
from segcal.evaluation.decisions.model import TABLES, Decisions
from segcal.evaluation.measure import distance_unit
from segcal.evaluation.methods import (
    ExclusiveHead,
    Method,
    calibrated_slabs,
    check_methods,
    heads_of,
    leaks,
    stream_for,
)
from segcal.evaluation.protocol import Protocol
from segcal.evidence import Evidence, describe
from segcal.evidence.statistic import empty_cells
from segcal.functional import counting
from segcal.functional.checks import ignored_labels
from segcal.functional.conformal import (
    conformal_radius,
    controlled_index,
    fewest_units,
    group_means,
    left_out_indices,
    left_out_radii,
)
from segcal.functional.counting import positions
from segcal.functional.scores import ScoreHistogram, count_scores, largest_of_cells
from segcal.functional.selective import (
    aurc,
    aurc_bounds,
    blocks_of,
    blocks_of_cells,
    excess_aurc,
    risk_coverage,
)
from segcal.kernels.constants import CELLS
from segcal.statistics import clusters_of
from segcal.text import warn_caller
from segcal.types import Activation, Array, Case, IgnoreIndex, InputError

COVERAGES = np.arange(1, 101) / 100
"""At which the curves are given."""

_LEAST = 1.0  # added to the uncertain volume, in pixels, so that an image without doubt still has a scale
_MERGED = 8  # cells per step: 64 steps for each halving of the distance to 0 or 1
STEPS = CELLS // _MERGED
"""Number of thresholds that are tried."""


@dataclass(frozen=True)
class CaseCounts:
    """Contribution of one case and one method; volumes are in pixels.

    Attributes:
        name: Name of the case.
        group: Its group, or "".
        voxel: Size of a pixel: the product of its spacing, 1 where there is none.
        unit: Unit of volumes in this size.
        true: True pixels by class and step of their probability.
        support: True pixels of each class.
        found: Those of them that are predicted as their class.
        expected: Sum of the probability of each class.
        uncertain: Sum of the distance of that probability to the nearer of 0 and 1: the expected number of mistakes
            if the class is predicted where its probability is above one half.
        pixels: Pixels in the region *All*.
        confidence: Their mean confidence.
        error: The share of them whose label is wrong.
    """

    name: str
    group: str
    voxel: float
    unit: str
    true: csr_array
    support: Int64[np.ndarray, " L"]
    found: Int64[np.ndarray, " L"]
    expected: Float64[np.ndarray, " L"]
    uncertain: Float64[np.ndarray, " L"]
    pixels: int
    confidence: float
    error: float


class Counts:
    """The counts of every case for one method on one head, and histograms of all cases together."""

    def __init__(self, method: str, head: ExclusiveHead) -> None:
        classes = head.protocol.num_classes
        self.method, self.head, self.cases = method, head, list[CaseCounts]()
        self.above = np.zeros((classes, STEPS), np.int64)  # pixels by class and step of the probability
        self.cells = empty_cells(classes)  # of the confidence in *All*

    def add(self, case: StreamedCase, method: Method) -> None:
        """Count one case, slab by slab."""
        protocol = self.head.protocol
        classes = protocol.num_classes
        labelled = protocol.labelled(case)
        labels, inside = labelled.labels[0], labelled.all[0]
        table, evidence = ScoreHistogram(*empty_cells(classes)), Evidence.zeros(2, classes, 1)
        for rows, slab, _ in calibrated_slabs(case, method):
            logits, truth = slab[0].cpu(), labels[rows]
            count_scores(logits, truth, table)
            pixels, regions = describe(logits, truth), [positions(inside[rows]), positions(truth >= 0)]
            evidence += Evidence.of(pixels, regions, num_classes=classes, bins=1, equal_mass=False)
            counting.count_cells(regions[0], *pixels[:3], *self.cells)
        self.above += _steps(table.total)
        true = _steps(table.hits)
        count, hit, confidence = (field.sum().item() for field in evidence[0].top)
        mean = (confidence / count, (count - hit) / count) if count else (np.nan, np.nan)
        found = evidence[1].top.hit.sum(dim=-1).numpy()
        own = (case.name, case.case.group or "", voxel_size(case.case), volume_unit(case.case))
        volumes = (true.sum(axis=1), found, *_sums(table))
        self.cases.append(CaseCounts(*own, csr_array(true), *volumes, int(count), *mean))


def thresholds() -> Float64[np.ndarray, " STEPS"]:
    """Return the thresholds that are tried: a pixel is kept where its probability is at least the threshold.

    The first is 0, which keeps everything. Those below one half are exact in float32.
    """
    largest = largest_of_cells().numpy()[_MERGED - 1 : -1 : _MERGED]
    return np.concatenate([[0.0], np.nextafter(largest, 2.0)])


def expected_volumes(
    head: ExclusiveHead, case: Case, method: Method
) -> tuple[Float64[np.ndarray, " L"], Float64[np.ndarray, " L"]]:
    """Return the expected volume of each class in all pixels of a case, labelled or not, and its uncertain part."""
    classes = head.protocol.num_classes
    table = ScoreHistogram(*empty_cells(classes))
    view = stream_for(head.protocol, head.case(case), [method], labelled=False)[0]
    for _, slab, _ in calibrated_slabs(view, head.method(method, case)):
        logits = slab[0].cpu()
        count_scores(logits, torch.zeros(logits.shape[1:], dtype=torch.int64), table)
    return _sums(table)


def decided_classes(head: ExclusiveHead) -> dict[int, str]:
    """Return the classes that rules are learned for, by number: every class of a softmax, or the channel itself."""
    return {1: head.name} if head.channels else dict(enumerate(head.protocol.names))


def voxel_size(case: Case) -> float:
    """Return the product of the spacing; 1 where there is none."""
    return float(np.prod(case.spacing)) if case.spacing is not None else 1.0


def volume_unit(case: Case) -> str:
    """Return the unit of volumes: of the spacing, which is in mm, or pixels or voxels where there is none."""
    return distance_unit(case) if case.spacing is None else f"mm^{case.logits.ndim - 1}"


def _sums(table: ScoreHistogram) -> tuple[Array, Array]:
    """Return the sum of the probabilities and of their distances to the nearer end, both exact."""
    distance, high = table.distance.numpy(), table.total.numpy()[:, CELLS // 2 :].sum(axis=1)
    near_one = distance[:, CELLS // 2 :].sum(axis=1)
    return distance[:, : CELLS // 2].sum(axis=1) + (high - near_one), distance.sum(axis=1)


def _steps(table: Shaped[Tensor, "L cells"]) -> Array:
    return np.asarray(table.numpy().reshape(len(table), STEPS, _MERGED).sum(axis=2))


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
    first = [own for own in counts if own.method == counts[0].method]
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
    tables: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
    for own in counts:
        tables["thresholds"] += _thresholds(own, risk)
        for name, row in (*_selective(own), *_volumes(own, level)):
            tables[name].append(row)
    return Decisions(**{name: TABLES[name].frame(rows) for name, rows in tables.items()}, settings=settings)


def _count(
    cases: Iterable[Case], methods: Mapping[str, Method], heads: Sequence[ExclusiveHead]
) -> tuple[list[Counts], list[str]]:
    """Return the counts of each method and head, and warnings about the cases."""
    counts = [Counts(method, head) for method in methods for head in heads]
    content, doubts = dict[str, str](), dict[str, None]()
    for case in cases:
        if case.name in content:
            raise InputError(f"case names must be unique, got '{case.name}' twice; rename one")
        for k, head in enumerate(heads):
            stream = stream_for(head.protocol, head.case(case), methods.values())
            for own in counts[k :: len(heads)]:
                own.add(stream[0], head.method(methods[own.method], case))
            if k == 0:
                content[case.name] = stream.facts[0].fingerprint
                doubts |= dict.fromkeys(stream.doubts)
    if not content:
        raise no_cases(cases)
    return counts, [*doubts, *leaks(methods, content, "its guarantees are optimistic; use other cases")]


def _thresholds(counts: Counts, risk: float) -> Iterator[tuple[Any, ...]]:
    """Yield the threshold of each class by conformal risk control of the share of its pixels that are missed."""
    tried = thresholds()
    for label, name in decided_classes(counts.head).items():
        held = [case for case in counts.cases if case.support[label]]
        if not held:
            yield (counts.method, name, risk, 0.0, *(np.nan,) * 5, 0, 0, fewest_units(risk))
            continue
        true = np.stack([case.true[[label]].toarray()[0] for case in held])
        support, clusters = true.sum(axis=1), clusters_of([case.group for case in held])
        shares = true / support[:, np.newaxis]
        losses = group_means(np.minimum(np.cumsum(shares, axis=1) - shares, 1.0), clusters)  # below each threshold
        chosen = max(0, controlled_index(losses, risk))
        others = np.maximum(0, left_out_indices(losses, risk))
        left_out = float(losses[np.arange(len(losses)), others].mean())
        kept, hits = counts.above[label, chosen:].sum(), true[:, chosen:].sum()
        found = 1 - np.array([[case.found[label]] for case in held]) / support[:, np.newaxis]
        cost = (hits / kept if kept else np.nan, kept / support.sum(), float(group_means(found, clusters).mean()))
        reached = (float(tried[chosen]), float(losses[:, chosen].mean()), left_out)
        yield (counts.method, name, risk, *reached, *cost, len(held), len(losses), fewest_units(risk))


def _selective(counts: Counts) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield risk against coverage, and its area, when single pixels and when whole images are rejected.

    The area of whole images, whose order is known exactly, has no bounds other than itself.
    """
    images, key = [case for case in counts.cases if case.pixels], (counts.method, counts.head.name)
    confidence, errors = np.array([[case.confidence, case.error] for case in images], np.float64).reshape(-1, 2).T
    pixels, whole = blocks_of_cells(counts.cells), blocks_of(confidence, errors)
    area, best, many = aurc(whole), aurc(blocks_of(-errors, errors)), int(pixels.number.sum())
    for unit, found, areas, wrong, count in (
        ("pixels", pixels, (aurc(pixels), *aurc_bounds(pixels), excess_aurc(pixels)), pixels.loss.sum(), many),
        ("images", whole, (area, area, area, area - best), errors.sum(), len(errors)),
    ):
        yield "selective", (*key, unit, *areas, wrong / max(count, 1), count)
        for row in zip(COVERAGES.tolist(), *(v.tolist() for v in risk_coverage(found, COVERAGES)), strict=True):
            yield "curves", (*key, unit, *row)


def _volumes(counts: Counts, level: float) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the radius of each class, and the interval of each case from all groups except its own."""
    clusters = clusters_of([case.group for case in counts.cases])
    for label, name in decided_classes(counts.head).items():
        key, scores = (counts.method, name), np.array([_error(case, label) for case in counts.cases])
        left_out = left_out_radii(scores, clusters, 1 - level)
        known = np.isfinite(left_out)
        covered = float((scores <= left_out)[known].mean()) if known.any() else np.nan
        radius, groups = conformal_radius(scores, clusters, 1 - level), len(np.unique(clusters))
        yield "intervals", (*key, level, radius, covered, len(scores), groups, fewest_units(1 - level))
        for case, reach in zip(counts.cases, left_out, strict=True):
            interval = _interval(case.expected[label], case.uncertain[label], case.voxel, reach)
            yield "volumes", (case.name, *key, *interval, case.support[label] * case.voxel)


def new_volumes(cases: Iterable[Case], calibrators: Mapping[str, Method], decisions: Decisions) -> pd.DataFrame:
    """Return the volumes of new cases with intervals: columns `case method label expected low high unit`.

    Args:
        cases: Images from the same source as those that the decisions were learned from; labels are not needed.
        calibrators: The same methods by the same names.
        decisions: The result of `decide`.
    """
    if unknown := [name for name in calibrators if name not in decisions.methods]:
        raise InputError(f"the decisions were learned for {', '.join(decisions.methods)}, got '{unknown[0]}'")
    check_methods(calibrators, decisions.protocol)
    heads = heads_of(decisions.protocol)
    radius = decisions.intervals.set_index(["method", "label"])["radius"]
    rows = []
    for case in cases:
        for method, calibrator in calibrators.items():
            for head in heads:
                expected, uncertain = expected_volumes(head, case, calibrator)
                for label, name in decided_classes(head).items():
                    volumes = expected[label], uncertain[label], voxel_size(case)
                    interval = _interval(*volumes, float(radius[method, name]))
                    rows.append((case.name, method, name, *interval, volume_unit(case)))
    return pd.DataFrame(rows, columns=["case", "method", "label", "expected", "low", "high", "unit"])


def _error(case: CaseCounts, label: int) -> float:
    """Return the error of the expected volume, in uncertain volumes."""
    error = abs(case.support[label] - case.expected[label])
    return float(error / (case.uncertain[label] + _LEAST))


def _interval(expected: float, uncertain: float, voxel: float, radius: float) -> Array:
    """Return the expected volume and both ends of its interval, in units of the spacing."""
    reach = radius * (uncertain + _LEAST)
    return np.array([expected, max(0.0, expected - reach), expected + reach]) * voxel
