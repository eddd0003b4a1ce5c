"""Folds of whole groups, and groups that nobody gave: blocks of time where neighbours look alike, else images."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segcal.statistics.grouping import BLOCKS, _blocks, _closeness, _counts_up, folds_of, grouping_of

COUNT = 40
NOBODY = [None] * COUNT
FRAMES = [f"0016E5_{7959 + 30 * k:05d}" for k in range(COUNT)]
WORDS = [f"2007_{number:06d}" for number in np.cumsum(np.random.default_rng(3).integers(1, 300, COUNT))]


def drifting(seed: int = 0, count: int = COUNT) -> np.ndarray:
    """A video: each frame is the one before it, moved a little."""
    return np.cumsum(np.random.default_rng(seed).normal(size=(count, 12)), axis=0)


def unrelated(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(COUNT, 12))


def test_groups_that_are_given_stay() -> None:
    groups = ["a", "b", None, *["a"] * (COUNT - 3)]
    found = grouping_of(FRAMES, groups, drifting())
    assert (found.kind, found.groups, found.count, found.warnings) == ("given", tuple(groups), 3, ())


@pytest.mark.parametrize("shuffled", [False, True])
def test_frames_of_a_video_are_blocks_of_time_in_any_order(shuffled: bool) -> None:
    order = np.random.default_rng(1).permutation(COUNT) if shuffled else np.arange(COUNT)
    found = grouping_of([FRAMES[k] for k in order], NOBODY, drifting()[order])
    assert (found.kind, found.count) == ("blocks", BLOCKS)
    by_time = [group for _, group in sorted(zip(order, found.groups, strict=True))]
    assert [by_time.index(group) for group in dict.fromkeys(by_time)] == list(range(0, COUNT, COUNT // BLOCKS))
    assert "give each case its group" in found.warnings[0]


def test_neighbours_that_look_alike_are_blocks_whatever_they_are_called() -> None:
    names = [f"{'x' * k}!" for k in range(COUNT)]  # no numbers: the order given is the order
    assert grouping_of(names, NOBODY, drifting()).kind == "blocks"


@pytest.mark.parametrize("names", [FRAMES, WORDS])
def test_numbers_alone_do_not_make_a_video(names: list[str]) -> None:
    kinds = [grouping_of(names, NOBODY, unrelated(seed)).kind for seed in range(20)]
    assert kinds.count("blocks") <= 3, "a test at 5 % errs in one of twenty"
    found = grouping_of(names, NOBODY, unrelated())
    assert (found.count, found.warnings) == (COUNT, ())


def test_two_videos_are_never_in_one_block() -> None:
    names = [f"{video}_{k:03d}" for video in "ab" for k in range(COUNT // 2)]
    layouts = np.concatenate([drifting(0, COUNT // 2), 50 + drifting(1, COUNT // 2)])
    found = grouping_of(names, NOBODY, layouts)
    assert found.kind == "blocks"
    assert not set(found.groups[: COUNT // 2]) & set(found.groups[COUNT // 2 :])


def test_few_cases_and_equal_layouts_say_nothing() -> None:
    assert grouping_of(FRAMES[:5], NOBODY[:5], drifting()[:5]).kind == "images"
    assert grouping_of(FRAMES, NOBODY, np.zeros((COUNT, 3))).kind == "images"


def test_only_neighbours_in_one_sequence_are_compared() -> None:
    """Three sequences; the only step inside one of them is from 20 to 26."""
    values = np.array([0.0, 0, 0, 10, 10, 20, 20, 20, 26])
    ratio, _ = _closeness(values[:, np.newaxis], [[0, 1, 2], [3, 4], [5, 6, 7, 8]])
    overall = np.abs(values[:, np.newaxis] - values).sum() / (9 * 8)
    assert ratio == pytest.approx(6 / 6 / overall)


def test_names_count_up_if_half_of_them_are_one_step_apart() -> None:
    assert _counts_up(["a1", "a2", "a3", "a10"], [[0, 1, 2, 3]])
    assert not _counts_up(["a1", "a2", "a3", "a10", "a20"], [[0, 1, 2, 3, 4]])


@pytest.mark.parametrize(
    ("names", "closeness", "rank", "kind"),
    [
        (FRAMES, 0.9, 9, "blocks"),  # 5 % of 199 random orders, less one
        (FRAMES, 0.9, 10, "images"),
        (FRAMES, 1.0, 0, "images"),
        (WORDS, 0.9, 0, "blocks"),  # names that do not count up: no random order may be as close
        (WORDS, 0.9, 1, "images"),
    ],
)
def test_frames_need_less_evidence_than_other_names(
    names: list[str], closeness: float, rank: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segcal.statistics.grouping._closeness", lambda *_: (closeness, rank))
    assert grouping_of(names, NOBODY, drifting()).kind == kind


def test_short_sequences_are_one_block() -> None:
    """Of 40 cases, two are too few for two of ten blocks; 38 make ten of their own (9.5, rounded)."""
    found = _blocks([[0, 1], list(range(2, 40))], 40)
    assert found[0] == found[1] == "block 0.0"
    assert len(set(found[2:])) == 10


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
