"""Counts of a case: its true pixels by probability, its volumes, its mean confidence and its error rate.

The probability of every class is counted into the 65,536 cells of `segcal.functional.scores`, eight of which make one
step of the thresholds. At every threshold the counts are exact, and so is the guarantee.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64, Shaped
from scipy.sparse import csr_array
from torch import Tensor

from segcal.cases import StreamedCase
from segcal.evaluation.measure import distance_unit
from segcal.evaluation.methods import ExclusiveHead, Method, calibrated_slabs, stream_for
from segcal.evidence import Evidence, describe
from segcal.evidence.statistic import empty_cells
from segcal.functional import counting
from segcal.functional.counting import positions
from segcal.functional.scores import ScoreHistogram, count_scores, largest_of_cells
from segcal.kernels.constants import CELLS
from segcal.types import Array, Case

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
        volumes = (true.sum(axis=1), found, *_volumes(table))
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
    return _volumes(table)


def decided_classes(head: ExclusiveHead) -> dict[int, str]:
    """Return the classes that rules are learned for, by number: every class of a softmax, or the channel itself."""
    return {1: head.name} if head.channels else dict(enumerate(head.protocol.names))


def voxel_size(case: Case) -> float:
    """Return the product of the spacing; 1 where there is none."""
    return float(np.prod(case.spacing)) if case.spacing is not None else 1.0


def volume_unit(case: Case) -> str:
    """Return the unit of volumes: of the spacing, which is in mm, or pixels or voxels where there is none."""
    return distance_unit(case) if case.spacing is None else f"mm^{case.logits.ndim - 1}"


def _volumes(table: ScoreHistogram) -> tuple[Array, Array]:
    """Return the sum of the probabilities and of their distances to the nearer end, both exact."""
    distance, high = table.distance.numpy(), table.total.numpy()[:, CELLS // 2 :].sum(axis=1)
    near_one = distance[:, CELLS // 2 :].sum(axis=1)
    return distance[:, : CELLS // 2].sum(axis=1) + (high - near_one), distance.sum(axis=1)


def _steps(table: Shaped[Tensor, "L cells"]) -> Array:
    return np.asarray(table.numpy().reshape(len(table), STEPS, _MERGED).sum(axis=2))
