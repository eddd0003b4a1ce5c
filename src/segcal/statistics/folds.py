"""Folds for cross-validation that never split a group, such as a video or a patient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from segcal.statistics import clusters_of
from segcal.types import Array

FOLDS = 5
"""Default number of folds; there are fewer if there are fewer groups."""


def folds_of(
    groups: Sequence[str | None], count: int = FOLDS, sizes: Sequence[float] | None = None
) -> Int64[np.ndarray, " cases"]:
    """Return the fold of each case, 0 to K - 1, where K is the smaller of `count` and the number of groups.

    A case without a group is its own group. Each group goes to the smallest fold so far, in order of decreasing size
    and then of appearance, so that the folds are balanced and the same on every machine.

    Args:
        groups: Group of each case.
        count: Number of folds.
        sizes: Size of each case, such as its number of pixels; 1 by default.

    Examples:
        >>> folds_of(["a", "b", "a", None, None], 2).tolist()
        [0, 1, 0, 1, 0]
    """
    weights = np.ones(len(groups)) if sizes is None else np.asarray(sizes, dtype=np.float64)
    clusters: Array = clusters_of([group or "" for group in groups])
    totals = np.bincount(clusters, weights=weights)
    loads = np.zeros((min(count, len(totals)), 2))  # size and groups, so that groups of size 0 leave no fold empty
    fold_of_cluster = np.zeros(len(totals), dtype=np.int64)
    for cluster in np.argsort(-totals, kind="stable"):
        fold = np.lexsort((loads[:, 1], loads[:, 0]))[0]
        fold_of_cluster[cluster] = fold
        loads[fold] += totals[cluster], 1
    return fold_of_cluster[clusters]
