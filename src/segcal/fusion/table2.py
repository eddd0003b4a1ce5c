"""Measures of Table 2: bounds that perfect fusion and calibration set, and the voxels that a new weighting changes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Integer

from segcal.functional.arrays import to_array
from segcal.fusion.voting import AtlasLabels, Segmentation, Values, Weights


def best_fusion(labels: AtlasLabels, truth: Segmentation, otherwise: Segmentation) -> Integer[np.ndarray, "*S"]:
    """Return the true label wherever at least one atlas proposes it, and `otherwise` where none does.

    Examples:
        >>> best_fusion(np.array([[1, 2], [0, 2]]), np.array([1, 1]), np.array([0, 2]))
        array([1, 2])
    """
    truth = to_array(truth)
    return np.where((to_array(labels) == truth).any(axis=0), truth, to_array(otherwise))


def best_probabilities(probabilities: Weights, right: Bool[Values, "N *S"]) -> Float[np.ndarray, "N *S"]:
    """Return the probabilities of the bound *Best Calibration*: certain where the network is correct, 1/2 elsewhere.

    The network predicts for each atlas whether its label is right (probability of at least 1/2). Where that prediction
    is correct the predicted answer gets a probability of 1, so the atlas gets 1 or 0; where it is not, the atlas gets
    `1/|L|` = 1/2, as there are two answers.

    Args:
        probabilities: The network's probability that each atlas is right.
        right: Whether it is.

    Examples:
        >>> best_probabilities(np.array([0.9, 0.2, 0.7]), np.array([True, False, False]))
        array([1. , 0. , 0.5])
    """
    right = to_array(right)
    correct = (to_array(probabilities) >= 0.5) == right
    return np.where(correct, right.astype(np.float64), 0.5)


class Changes(NamedTuple):
    """Counts of voxels; adding two of them adds up their regions or cases.

    Attributes:
        possible: Voxels whose label can change: not all atlases propose the same.
        changed: Those whose label did change.
        corrected: Of these, from wrong to correct.
        broken: Of these, from correct to wrong.
    """

    possible: int
    changed: int
    corrected: int
    broken: int

    @property
    def rate(self) -> float:
        """Share of the voxels that can change that did; NaN where none can."""
        return self.changed / self.possible if self.possible else float("nan")

    @property
    def wrong_to_correct(self) -> float:
        """Share of the changes that went from wrong to correct; NaN without changes."""
        return self.corrected / self.changed if self.changed else float("nan")

    @property
    def correct_to_wrong(self) -> float:
        """Share of the changes that went from correct to wrong; NaN without changes."""
        return self.broken / self.changed if self.changed else float("nan")


def voxel_changes(
    before: Segmentation,
    after: Segmentation,
    truth: Segmentation,
    labels: AtlasLabels,
    inside: Bool[Values, "*S"],
) -> Changes:
    """Count the changes (VC) between two fused segmentations within a region, and whether they are for the better.

    Examples:
        >>> labels = np.array([[1, 1, 2, 0], [1, 0, 1, 1]])
        >>> before, after = np.array([1, 0, 1, 0]), np.array([1, 1, 2, 0])
        >>> voxel_changes(before, after, np.array([1, 1, 1, 0]), labels, np.ones(4, bool))
        Changes(possible=3, changed=2, corrected=1, broken=1)
    """
    before, after, truth, labels, inside = map(to_array, (before, after, truth, labels, inside))
    possible = inside & (labels != labels[:1]).any(axis=0)
    changed = inside & (before != after)
    return Changes(
        int(possible.sum()),
        int(changed.sum()),
        int((changed & (after == truth)).sum()),
        int((changed & (before == truth)).sum()),
    )
