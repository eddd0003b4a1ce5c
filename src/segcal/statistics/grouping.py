"""Folds for cross-validation that never split a group (a video, a patient), and groups of cases that declare none.

Neighbouring frames are nearly copies of each other. Cross-validation that leaves single frames out then tests on what
it was fitted on, and promises more than another video delivers. Cases without a group are put in the order of their
names and their predictions compared: where neighbours are more alike than cases drawn at random, folds are made of
blocks of consecutive cases.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Float64, Int64

from segcal.statistics.bootstrap import clusters_of
from segcal.types import Array

FOLDS = 5
"""Default number of folds; there are fewer if there are fewer groups."""
BLOCKS = 10
"""Blocks of time that cases without groups are cut into."""
FEW_GROUPS = 10
"""With fewer groups, cross-validation is too noisy to choose weak penalties by."""

_FEWEST = 8  # cases from which neighbours can be compared
_MOST = 512  # cases that are compared
_SHUFFLES = 199
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)")


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


@dataclass(frozen=True)
class Grouping:
    """The group of each case, how it was found, and why, in a sentence."""

    groups: tuple[str | None, ...]
    kind: Literal["given", "blocks", "images"]
    why: str

    @property
    def count(self) -> int:
        """Number of groups; a case without one is its own group."""
        return len(set(self.groups) - {None, ""}) + sum(not group for group in self.groups)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about groups that were guessed."""
        if self.kind != "blocks":
            return ()
        return (f"{self.why}; give each case its group (the video, the patient) to say what belongs together",)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a fit report."""
        return {"kind": self.kind, "groups": self.count, "why": self.why}


def grouping_of(names: Sequence[str], groups: Sequence[str | None], layouts: Float[np.ndarray, "cases K"]) -> Grouping:
    """Return the groups that folds must not split.

    Groups that are given are used as they are. Otherwise cases are sorted by name, numbers by value, and `layouts`
    compared: a few numbers that describe each case, such as the shares of the predicted classes in its parts. If
    neighbours are closer than in all of 199 random orders, blocks of consecutive cases are the groups; if the names
    count up in equal steps, as frames do, closer than in 95 % of them is enough.

    Examples:
        >>> grouping_of(["a_1", "a_2"], ["x", "y"], np.zeros((2, 1))).kind
        'given'
        >>> grouping_of(["lion", "zebra"], [None, None], np.zeros((2, 1))).kind
        'images'
    """
    if any(groups):
        return Grouping(tuple(groups), "given", "the cases say which group they belong to")
    alone = tuple(None for _ in names)
    if len(names) < _FEWEST:
        return Grouping(alone, "images", f"no groups are given, and {len(names)} cases are too few to compare")
    sequences = _sequences(names)
    closeness, rank = _closeness(np.asarray(layouts, np.float64), sequences)
    if closeness < 1 and rank <= (_SHUFFLES // 20 if _counts_up(names, sequences) else 0):
        why = (
            f"no groups are given, and the predictions of neighbouring cases differ {closeness:.0%} as much as those "
            "of any two: folds are blocks of consecutive cases"
        )
        return Grouping(_blocks(sequences, len(names)), "blocks", why)
    return Grouping(alone, "images", "no groups are given, and neighbouring cases are no more alike than others")


def _sequences(names: Sequence[str]) -> list[list[int]]:
    """Return the places of the cases whose names differ in their last number only, in the order of that number."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for place, name in enumerate(names):
        match = _NUMBERED.fullmatch(name)
        key, number = (((match[1], match[3])), int(match[2])) if match else (("", ""), place)
        found.setdefault(key, []).append((number, place))
    return [[place for _, place in sorted(found[key])] for key in sorted(found)]


def _counts_up(names: Sequence[str], sequences: Sequence[Sequence[int]]) -> bool:
    """Return whether most neighbours are one equal step apart."""
    steps: Counter[int] = Counter()
    for sequence in sequences:
        numbers = [int(match[2]) for place in sequence if (match := _NUMBERED.fullmatch(names[place]))]
        steps.update(after - before for before, after in pairwise(numbers))
    return bool(steps) and 2 * max(steps.values()) >= len(names)


def _closeness(layouts: Float64[np.ndarray, "cases K"], sequences: Sequence[Sequence[int]]) -> tuple[float, int]:
    """Return the mean distance of neighbours over that of all pairs, and how many random orders are as close."""
    order = [place for sequence in sequences for place in sequence][:_MOST]
    ends = np.cumsum([len(sequence) for sequence in sequences])[:-1]
    starts = np.setdiff1d(np.arange(len(order) - 1), ends - 1)  # neighbours in one sequence
    chosen = layouts[order]
    distance = np.stack([np.abs(chosen - row).sum(axis=1) for row in chosen])
    overall = float(distance.sum()) / max(len(order) * (len(order) - 1), 1)
    if not len(starts) or overall == 0:
        return 1.0, _SHUFFLES

    def mean_along(path: Array) -> float:
        return float(distance[path[starts], path[starts + 1]].mean())

    own, random = mean_along(np.arange(len(order))), np.random.default_rng(0)
    as_close = sum(mean_along(random.permutation(len(order))) <= own for _ in range(_SHUFFLES))
    return own / overall, as_close


def _blocks(sequences: Sequence[Sequence[int]], cases: int) -> tuple[str | None, ...]:
    """Return the block of each case: `BLOCKS` in all, or one for each sequence where there are more of those."""
    result: list[str | None] = [None] * cases
    for number, sequence in enumerate(sequences):
        count = max(1, min(len(sequence), round(BLOCKS * len(sequence) / cases)))
        for k, part in enumerate(np.array_split(np.array(sequence), count)):
            for place in part.tolist():
                result[place] = f"block {number}.{k}"
    return tuple(result)
