"""*All*, *Boundary* and *Local*: against loops, by hand, and the promises about ignored pixels and patches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segcal.functional.counting import positions_in_box
from segcal.functional.geometry import boundary, foreground, labelled
from segcal.regions import (
    REGIONS,
    LabelledCase,
    chosen_regions,
    in_table_order,
    local_patch_size,
    local_patches,
    region_title,
)
from segcal.types import Case, InputError, Slab
from support import references

SIDES = st.lists(st.integers(1, 200), min_size=1, max_size=3).map(tuple)


@pytest.mark.parametrize("ignore_index", [None, 4, (4, 0), -1, 300], ids=str)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64], ids=str)
@pytest.mark.parametrize("background", [None, 1, 4])
def test_regions_agree_with_loops(
    rng: np.random.Generator, ignore_index: int | tuple[int, ...] | None, dtype: torch.dtype, background: int | None
) -> None:
    labels = np.repeat(rng.choice([0, 1, 4, 255, 44], size=(2, 8, 3), p=[0.2, 0.6, 0.1, 0.05, 0.05]), 3, axis=2)
    ignored = np.atleast_1d([] if ignore_index is None else ignore_index)
    valid = ~np.isin(labels, ignored)
    near = np.stack([references.boundary(image) for image in labels]) & valid
    inside = valid if background is None else valid & ((labels != background) | near)
    tensor = torch.from_numpy(labels).to(dtype)
    np.testing.assert_array_equal(labelled(tensor, ignore_index), valid)
    np.testing.assert_array_equal(boundary(tensor, ignore_index), near)
    np.testing.assert_array_equal(foreground(tensor, ignore_index, background=background), inside)
    at_hand = foreground(tensor, ignore_index, background=background, near=torch.from_numpy(near))
    np.testing.assert_array_equal(at_hand, inside)


def test_all_by_hand() -> None:
    """Background 0, one structure 1, one ignored pixel 9."""
    labels = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 9]])
    marks = {
        "labelled": "xxxxxxxxxxx.",
        "boundary": "..xxxxxxxxx.",  # 9 is different from its neighbours, so they are at a boundary; itself is in none
        "foreground": "..xxxxxxxxx.",
        "narrow": "...xx..xx.x.",
    }
    found = {
        "labelled": labelled(labels, 9),
        "boundary": boundary(labels, 9),
        "foreground": foreground(labels, 9, background=0),
        "narrow": boundary(labels, 9, width=1),
    }
    for name, mask in found.items():
        assert "".join("x" if m else "." for m in mask[0]) == marks[name], name


@given(shape=SIDES, size=st.integers(1, 80), count=st.integers(0, 5), margin=st.integers(0, 30), seed=st.integers(0, 9))
def test_patches_lie_inside(shape: tuple[int, ...], size: int, count: int, margin: int, seed: int) -> None:
    boxes = local_patches(shape, name="case", size=size, count=count, margin=margin, seed=seed)
    assert len(boxes) == count
    for box in boxes:
        assert len(box) == len(shape)
        for interval, length in zip(box, shape, strict=True):
            room = max(0, min(margin, (length - min(size, length)) // 2))
            assert interval.stop - interval.start == min(size, length)
            assert room <= interval.start
            assert interval.stop <= length - room
    assert boxes == local_patches(shape, name="case", size=size, count=count, margin=margin, seed=seed)


def test_patches_depend_on_seed_and_name_and_on_nothing_else() -> None:
    def patches(**changes: object) -> list[tuple[slice, ...]]:
        return local_patches((500, 400), **{"name": "a", "seed": 0, **changes})

    np.random.seed(1)  # noqa: NPY002  (the global generator must not matter)
    torch.manual_seed(1)
    first = patches()
    np.random.seed(2)  # noqa: NPY002
    torch.manual_seed(2)
    assert patches() == first
    assert len({str(p) for p in (first, patches(name="b"), patches(seed=1))}) == 3
    assert patches(count=3) == first[:3]


def test_patches_reach_every_place() -> None:
    starts = [box[0].start for box in local_patches((12,), name="a", size=10, count=200)]
    assert set(starts) == {0, 1, 2}


@pytest.mark.parametrize("wrong", [{"size": 0}, {"count": -1}, {"margin": -1}])
def test_impossible_patches_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match="patches need size >= 1, count >= 0 and margin >= 0, got"):
        local_patches((10, 10), name="a", **wrong)


@given(shape=SIDES.filter(lambda s: math.prod(s) < 20_000), seed=st.integers(0, 9))
def test_the_positions_of_a_box_are_its_pixels(shape: tuple[int, ...], seed: int) -> None:
    image = np.arange(math.prod(shape)).reshape(shape)
    for box in local_patches(shape, name="a", size=7, count=2, seed=seed):
        inside = torch.from_numpy(image % 3 != 1)
        expected = [position for position in image[box].ravel().tolist() if position % 3 != 1]
        assert positions_in_box(inside, box).tolist() == expected


def labelled_case(labels: torch.Tensor, **settings: int | None) -> LabelledCase:
    return LabelledCase(Case("a", torch.zeros(3, *labels.shape), labels), labels.unsqueeze(0), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("background", [None, 0])
@pytest.mark.parametrize("width", [1, 3])
def test_the_registry_computes_all_and_boundary(rng: np.random.Generator, background: int | None, width: int) -> None:
    labels = torch.from_numpy(np.repeat(rng.integers(-1, 3, size=(9, 4)), 4, axis=1))
    case = labelled_case(labels, background=background, boundary_width=width)
    near = references.boundary(labels.numpy(), width=width) & (labels.numpy() >= 0)
    inside = (labels.numpy() >= 0) & (near | (labels.numpy() != background))
    expected = {"all": inside, "boundary": near}
    for name, mask in expected.items():
        np.testing.assert_array_equal(REGIONS[name].mask(case)[0], mask)


def test_regions_of_a_user_join_those_of_the_registry() -> None:
    chosen = chosen_regions({"own": lambda case, labels: labels >= -1})
    assert set(chosen) == {*REGIONS, "own"}
    labels = torch.tensor([[0, -1, 2]])
    assert chosen["own"].mask(labelled_case(labels)).tolist() == [[[True, False, True]]]
    assert region_title("own") == "own"
    assert region_title("local-avg") == "Local-Avg"
    assert in_table_order(["own", "boundary", "all"]) == ["all", "boundary", "own"]


@pytest.mark.parametrize("context", [0, 3])
def test_inner_rows_are_places_in_the_case(context: int) -> None:
    """Slices 8 to 15 of a case, read with `context` more on either side."""
    rows = slice(8 - context, 16 + context)
    slab = Slab(torch.zeros(1, 2, 8 + 2 * context), None, None, rows, slice(context, context + 8))
    assert slab.inner_rows == slice(8, 16)
    np.testing.assert_array_equal(np.arange(30)[slab.inner_rows], np.arange(30)[rows][slab.inner])


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((360, 480), 72),  # CamVid
        ((181, 217, 181), 72),  # LPBA40
        ((144, 144), 72),  # exactly a quarter
        ((143, 144), 50),  # a little more than a quarter
        ((35, 51, 35), 19),  # hippocampus: 19^3 of 62,475 voxels is 11 %, 20^3 is 12.8 %
        ((8, 8), 2),
        ((1, 1), 1),
    ],
)
def test_the_patch_size_follows_the_images(shape: tuple[int, ...], size: int) -> None:
    assert local_patch_size([shape]) == size
    assert local_patch_size([shape, (9999, 9999), (1, 1)]) == size, "the image of median size decides"


def test_a_patch_size_needs_images() -> None:
    with pytest.raises(InputError, match="at least one image"):
        local_patch_size([])


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, ["all", "boundary", "local-avg", "local-max"]),
        ("boundary", ["all", "boundary"]),
        (("local-avg", "boundary"), ["all", "boundary", "local-avg"]),
        (["all"], ["all"]),
        ([], ["all"]),
    ],
)
def test_regions_chosen_by_name_are_those_and_all(names: str | Sequence[str] | None, expected: list[str]) -> None:
    found = chosen_regions(names)
    assert sorted(found) == sorted(expected)
    assert all(found[name] is REGIONS[name] for name in expected)


def test_a_wide_margin_leaves_the_places_in_the_middle() -> None:
    """Ten of 13 pixels can begin at 0 to 3; a margin of 9 has no room, and leaves 1 and 2."""
    starts = {box[0].start for box in local_patches((13,), name="a", size=10, count=50, margin=9)}
    assert starts == {1, 2}
