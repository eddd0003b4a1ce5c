"""Grouped folds: whole groups, all cases, balanced."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from segcal.statistics.grouping import folds_of

GROUPED = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "d", "", None]), st.integers(0, 100)), min_size=1, max_size=30
)


@given(GROUPED, st.integers(1, 7))
def test_groups_are_whole_and_folds_are_full(cases: list[tuple[str | None, int]], count: int) -> None:
    groups, sizes = [group for group, _ in cases], [size for _, size in cases]
    folds = folds_of(groups, count, sizes)
    named = {group for group in groups if group}
    units = len(named) + sum(not group for group in groups)
    assert sorted(set(folds.tolist())) == list(range(min(count, units)))
    for name in named:
        assert len({fold for fold, group in zip(folds, groups, strict=True) if group == name}) == 1


@given(GROUPED, st.integers(2, 5))
def test_folds_differ_by_one_group_at_most(cases: list[tuple[str | None, int]], count: int) -> None:
    groups, sizes = [group for group, _ in cases], [size for _, size in cases]
    folds = folds_of(groups, count, sizes)
    loads = np.bincount(folds, weights=sizes)
    largest = max(
        sum(size for own, size in cases if own == group) if group else max(s for own, s in cases if not own)
        for group in set(groups)
    )
    assert loads.max() - loads.min() <= largest


def test_a_case_worked_by_hand() -> None:
    """Largest first: c (9) to 0, a (4 + 3) to 1, b (5) to 1 as 7 < 9, the lone one (1) to 0 as 9 < 12."""
    assert folds_of(["a", "b", "a", "c", None], 2, [4, 5, 3, 9, 1]).tolist() == [1, 1, 1, 0, 0]


def test_groups_of_no_size_leave_no_fold_empty() -> None:
    assert sorted(folds_of([None, None, None], 3, [0, 7, 0]).tolist()) == [0, 1, 2]
