from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import binary_erosion
from scipy.spatial.distance import cdist

from segcal.functional.surfaces import (
    average_distance,
    larger_percentile_distance,
    maximum_distance,
    overlaps,
    percentile_distance,
    segmentation_quality,
    surface_dice,
    surface_distances,
)
from segcal.types import InputError

SPACING = (1.0, 0.5, 2.0)


def blobs(seed: int, shape: tuple[int, ...] = (9, 11, 8), labels: int = 4) -> np.ndarray:
    """Random smooth regions, with single voxels of any label among them."""
    random = np.random.default_rng(seed)
    centres = random.uniform(size=(3 * labels, len(shape))) * shape
    grid = np.stack(np.meshgrid(*(np.arange(n) for n in shape), indexing="ij"), axis=-1).reshape(-1, len(shape))
    found = (cdist(grid, centres).argmin(axis=1) % labels).reshape(shape)
    noise = random.uniform(size=shape) < 0.02
    found[noise] = random.integers(labels, size=int(noise.sum()))
    return found


def slow_distances(one: np.ndarray, other: np.ndarray, spacing: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Every surface voxel of each mask to the nearest one of the other, by comparing all with all."""
    points = [np.argwhere(mask & ~binary_erosion(mask)) * np.array(spacing) for mask in (one, other)]
    table = cdist(*points)
    return np.sort(table.min(axis=1)), np.sort(table.min(axis=0))


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_distances_are_those_of_all_pairs(first: int, second: int) -> None:
    one, two = blobs(first), blobs(second)
    for found in surface_distances(one, two, range(1, 4), spacing=SPACING):
        forward, backward = slow_distances(one == found.label, two == found.label, SPACING)
        assert np.allclose(np.sort(found.forward), forward, atol=1e-12)
        assert np.allclose(np.sort(found.backward), backward, atol=1e-12)
        both = np.concatenate([forward, backward])
        assert average_distance(found) == pytest.approx(both.mean())
        assert percentile_distance(found, 95.0) == pytest.approx(np.percentile(both, 95))
        assert percentile_distance(found, 37.0) == pytest.approx(np.percentile(both, 37))
        assert maximum_distance(found) == pytest.approx(both.max())
        assert surface_dice(found, 1.0) == pytest.approx((both <= 1.0).mean())


@given(st.integers(0, 10**6))
def test_volumes_follow_the_equation_of_the_paper(seed: int) -> None:
    one, two = blobs(seed), blobs(seed + 1)
    for found in surface_distances(one, two, range(1, 4), spacing=SPACING, of="volumes"):
        points = [np.argwhere(array == found.label) * np.array(SPACING) for array in (one, two)]
        table = cdist(*points)
        both = np.concatenate([table.min(axis=0), table.min(axis=1)])
        assert percentile_distance(found) == pytest.approx(np.percentile(both, 95))


@given(st.integers(0, 10**6))
def test_volume_dice_follows_the_equation_of_the_paper(seed: int) -> None:
    """The mean over the labels, without background, of sets of voxels."""
    one, two = blobs(seed), blobs(seed + 1)
    dice = []
    for label in range(1, 4):
        mine, theirs = ({*map(tuple, np.argwhere(array == label))} for array in (one, two))
        dice.append(2 * len(mine & theirs) / (len(mine) + len(theirs)))
    assert [entry.dice for entry in overlaps(one, two, range(1, 4))] == pytest.approx(dice)
    assert dict(segmentation_quality(one, two, range(1, 4)).rows())["dice"] == pytest.approx(np.mean(dice))


@given(st.integers(0, 10**6), st.floats(0.1, 3))
def test_surface_dice_follows_the_equation_of_the_paper(seed: int, tolerance: float) -> None:
    """Over the set of the points of both surfaces, by comparing each with all points of either."""
    one, two = blobs(seed), blobs(seed + 1)
    for found in surface_distances(one, two, range(1, 4), spacing=SPACING):
        masks = [array == found.label for array in (one, two)]
        surfaces = [np.argwhere(mask & ~binary_erosion(mask)) for mask in masks]
        points = np.unique(np.concatenate(surfaces), axis=0)
        near = [
            cdist(points * SPACING, surface * SPACING).min(axis=1) <= tolerance * (1 + 1e-9) for surface in surfaces
        ]
        expected = 2 * (near[0] & near[1]).sum() / (near[0].sum() + near[1].sum())
        assert surface_dice(found, tolerance, form="equation") == pytest.approx(expected)


def test_two_squares_by_hand() -> None:
    """Squares of 4x4 shifted by one voxel of 2 mm: all 16 + 16 voxels but the inner 2x2 of each are surface."""
    one, two = np.zeros((8, 8), int), np.zeros((8, 8), int)
    one[2:6, 1:5] = two[2:6, 2:6] = 1
    (found,) = surface_distances(one, two, [1], spacing=(2.0, 2.0))
    # of each 12 surface voxels: 4 lie beyond the other square, 2 inside it one voxel from its surface, 6 on both
    assert sorted(found.forward) == sorted(found.backward) == [0.0] * 6 + [2.0] * 6
    assert average_distance(found) == 1.0
    assert percentile_distance(found) == maximum_distance(found) == 2.0
    assert surface_dice(found, 1.9) == 0.5
    assert surface_dice(found, 2.0) == 1.0
    # of the 18 points of either surface, 6 lie on both and count once: 2 * 6 / (12 + 12) within 1.9 mm
    assert surface_dice(found, 1.9, form="equation") == 0.5
    assert surface_dice(found, 2.0, form="equation") == 1.0
    (overlap,) = overlaps(one, two, [1])
    assert overlap.dice == 2 * 12 / 32


def test_the_edge_of_the_image_is_a_surface() -> None:
    full = np.ones((3, 3), int)
    (found,) = surface_distances(full, full, [1])
    assert len(found.forward) == 8  # all but the middle


def test_empty_structures_are_counted() -> None:
    one, two = np.array([[1, 1, 2, 0, 0]]), np.array([[1, 1, 0, 3, 0]])
    quality = segmentation_quality(one, two, [1, 2, 3, 4])
    assert (quality.absent, quality.missed, quality.invented) == ((4,), (3,), (2,))
    by_label = {entry.label: entry for entry in quality.labels}
    assert by_label[1].dice == by_label[1].surface_dice == 1.0
    assert by_label[2].dice == by_label[3].surface_dice == 0.0
    assert np.isnan(by_label[2].average)
    assert np.isnan(by_label[3].maximum)
    rows = dict(quality.rows())
    assert rows["dice"] == pytest.approx(1 / 3)
    assert rows["asd"] == rows["md"] == 0.0  # over the one label that has distances
    assert (rows["labels"], rows["absent"], rows["missed"], rows["invented"]) == (3, 1, 1, 1)
    nothing = segmentation_quality(one, two, [7])
    assert np.isnan(dict(nothing.rows())["dice"])


@given(st.integers(0, 10**6), st.floats(0.1, 10))
def test_swapping_and_scaling(seed: int, scale: float) -> None:
    one, two = blobs(seed), blobs(seed + 1)
    there, back = (list(surface_distances(*pair, range(1, 4))) for pair in ((one, two), (two, one)))
    larger = list(surface_distances(one, two, range(1, 4), spacing=(scale,) * 3))
    for a, b, c in zip(there, back, larger, strict=True):
        assert average_distance(a) == pytest.approx(average_distance(b))
        assert percentile_distance(c) == pytest.approx(scale * percentile_distance(a))
        assert surface_dice(c, scale) == pytest.approx(surface_dice(a, 1.0))


def test_a_mask_removes_voxels_from_both() -> None:
    one, two = blobs(0), blobs(1)
    inside = np.random.default_rng(0).uniform(size=one.shape) < 0.8
    cut = [np.where(inside, array, 0) for array in (one, two)]
    assert dict(segmentation_quality(one, two, (1, 2, 3), inside=inside).rows()) == dict(
        segmentation_quality(*cut, (1, 2, 3)).rows()
    )


def test_wrong_input_is_refused() -> None:
    one = np.zeros((3, 3), int)
    with pytest.raises(InputError, match="one shape"):
        segmentation_quality(one, np.zeros((3, 4), int), [1])
    with pytest.raises(InputError, match="2 positive numbers"):
        segmentation_quality(one, one, [1], spacing=(1.0, 0.0))


needs_monai = pytest.mark.skipif(not importlib.util.find_spec("monai"), reason="MONAI is not installed")
needs_surface_distance = pytest.mark.skipif(
    not importlib.util.find_spec("surface_distance"), reason="surface-distance is not installed"
)


@needs_monai
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(5))
def test_monai_agrees(seed: int) -> None:
    import torch
    from monai.metrics import (
        compute_average_surface_distance,
        compute_dice,
        compute_hausdorff_distance,
        compute_surface_dice,
    )

    one, two = blobs(seed), blobs(seed + 100)
    pair = [torch.nn.functional.one_hot(torch.from_numpy(a), 4).movedim(-1, 0)[None].float() for a in (one, two)]
    options = {"include_background": False, "spacing": list(SPACING)}
    average = compute_average_surface_distance(*pair, symmetric=True, **options)[0]
    largest = compute_hausdorff_distance(*pair, **options)[0]
    dice = compute_dice(*pair, include_background=False)[0]
    surface = compute_surface_dice(*pair, class_thresholds=[1.0] * 3, **options)[0]
    directed = compute_hausdorff_distance(*pair, percentile=95, **options)[0]
    for found in surface_distances(one, two, (1, 2, 3), spacing=SPACING):
        k = found.label - 1
        assert average_distance(found) == pytest.approx(float(average[k]), rel=1e-5)
        assert maximum_distance(found) == pytest.approx(float(largest[k]), rel=1e-5)
        assert surface_dice(found, 1.0) == pytest.approx(float(surface[k]), rel=1e-5)
        assert overlaps(one, two, [found.label])[0].dice == pytest.approx(float(dice[k]), rel=1e-5)
        # MONAI's 95 % distance is the larger of both directions
        assert larger_percentile_distance(found) == pytest.approx(float(directed[k]), rel=1e-5)


@needs_surface_distance
@pytest.mark.filterwarnings("ignore")
def test_surface_distance_agrees_where_surfaces_are_parallel() -> None:
    import surface_distance as peer

    one, two = np.zeros((12, 10, 10), bool), np.zeros((12, 10, 10), bool)
    one[2:8], two[2:10] = True, True  # slabs across the volume: one face apart by 2 voxels of 1.5 mm, one shared
    spacing = (1.5, 1.0, 1.0)
    theirs = peer.compute_surface_distances(two, one, spacing)
    (found,) = surface_distances(one.astype(int), two.astype(int), [1], spacing=spacing)
    assert overlaps(one.astype(int), two.astype(int), [1])[0].dice == pytest.approx(
        peer.compute_dice_coefficient(two, one)
    )
    assert maximum_distance(found) == pytest.approx(peer.compute_robust_hausdorff(theirs, 100))
    for tolerance in (3.0, 3.1):
        assert surface_dice(found, tolerance) == peer.compute_surface_dice_at_tolerance(theirs, tolerance) == 1.0
