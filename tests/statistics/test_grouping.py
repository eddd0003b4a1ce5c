"""Groups that nobody gave: blocks of time where neighbours look alike, single images elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from segcal.statistics.grouping import BLOCKS, _blocks, _closeness, _counts_up, grouping_of

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
