"""Folds for cross-validation that never split a group: a video or a patient is left out whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from segcal.statistics import clusters_of
from segcal.types import Array, InputError

FOLDS = 5
"""How many are usual; fewer where there are fewer groups."""


def folds_of(
    groups: Sequence[str | None], count: int = FOLDS, sizes: Sequence[float] | None = None
) -> Int64[np.ndarray, " cases"]:
    """The fold of each case, 0 to K - 1, where K is `count` or, if that is less, the number of groups.

    A case without a group is a group of its own. Groups go to the smallest fold so far, the largest group first and
    equal ones in the order in which they appear, so that the folds are balanced and the same on every machine.

    Args:
        groups: The group of each case.
        count: Folds wanted.
        sizes: Of each case, such as its pixels; without them every case counts one.

    >>> folds_of(["a", "b", "a", None, None], 2).tolist()
    [0, 1, 0, 1, 0]
    """
    if count < 1:
        raise InputError(f"count must be at least 1, got {count}")
    weights = np.ones(len(groups)) if sizes is None else np.asarray(sizes, dtype=np.float64)
    if weights.shape != (len(groups),):
        raise InputError(f"sizes must have one number for each of the {len(groups)} cases, got {len(weights)}")
    clusters: Array = clusters_of([group or "" for group in groups])
    totals = np.bincount(clusters, weights=weights)
    loads = np.zeros((min(count, len(totals)), 2))  # size, and groups: those of no size must not leave a fold empty
    fold_of_cluster = np.zeros(len(totals), dtype=np.int64)
    for cluster in np.argsort(-totals, kind="stable"):
        fold = np.lexsort((loads[:, 1], loads[:, 0]))[0]
        fold_of_cluster[cluster] = fold
        loads[fold] += totals[cluster], 1
    return fold_of_cluster[clusters]
