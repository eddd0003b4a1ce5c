"""Voxel changes (Table 2, VC): which labels another weighting changes, and whether for the better."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Bool

from segcal.functional.arrays import to_array
from segcal.fusion.voting import AtlasLabels, Segmentation, Values


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
    """Count the changes between two fused segmentations within a region.

    Examples:
        >>> import numpy as np
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
