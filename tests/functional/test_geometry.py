"""Pixels near a boundary: against loops over neighbours and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from segcal.functional.geometry import near_boundary
from support import references

SHAPES = [(1,), (2,), (9,), (1, 1), (1, 6), (7, 5), (4, 2), (3, 5, 4), (1, 1, 7), (2, 2, 2, 3)]
DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("ball", [False, True], ids=["axes", "ball"])
@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_loops(rng: np.random.Generator, shape: tuple[int, ...], width: int, ball: bool) -> None:
    for density in (0.1, 0.5):
        labels = (rng.random((3, *shape)) < density).astype(np.int64)
        expected = np.stack([references.boundary(image, width=width, ball=ball) for image in labels])
        np.testing.assert_array_equal(near_boundary(torch.from_numpy(labels), width=width, ball=ball), expected)


@pytest.mark.parametrize(
    ("ball", "drawing"),
    [
        (False, [". . x . .", ". . x . .", "x x x x x", ". . x . .", ". . x . ."]),
        (True, [". . x . .", ". x x x .", "x x x x x", ". x x x .", ". . x . ."]),
    ],
    ids=["axes", "ball"],
)
def test_one_pixel_by_hand(ball: bool, drawing: list[str]) -> None:
    labels = torch.zeros(1, 5, 5, dtype=torch.int64)
    labels[0, 2, 2] = 1
    expected = torch.tensor([[mark == "x" for mark in row.split()] for row in drawing])
    assert torch.equal(near_boundary(labels, ball=ball)[0], expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_integer_type_and_memory_order(rng: np.random.Generator, dtype: torch.dtype) -> None:
    labels = torch.from_numpy(rng.integers(0, 100, (2, 6, 5)) // 70 * 99)
    expected = near_boundary(labels)
    assert 0 < expected.sum() < expected.numel()
    assert torch.equal(near_boundary(labels.to(dtype)), expected)
    turned = labels.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(near_boundary(turned.to(dtype)), expected)


@pytest.mark.parametrize("far", [2**16, 2**32, -(2**16)])
def test_large_labels_do_not_wrap(far: int) -> None:
    assert near_boundary(torch.tensor([[0, 0, 0, far]])).tolist() == [[False, True, True, True]]


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 3), (2, 3, 0)], ids=str)
def test_no_pixels(shape: tuple[int, ...]) -> None:
    assert near_boundary(torch.zeros(shape, dtype=torch.int64)).shape == shape
