"""Readings of the fine histogram against sums over every pixel."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from segcal.evidence import Histogram
from segcal.evidence.readings import _on_grid, ece_by_bins, smooth_ece
from segcal.evidence.statistic import add_cells, empty_cells, take_cells
from segcal.functional import counting


def cells_of(confidence: np.ndarray, right: np.ndarray) -> Histogram:
    """A fine histogram of two classes, of which pixels take turns."""
    table = empty_cells(2)
    predicted = np.arange(confidence.size) % 2
    labels = np.where(right, predicted, 1 - predicted)
    pixels = (confidence, predicted.astype(np.int32), labels)
    counting.count_cells(torch.arange(confidence.size), *map(torch.from_numpy, pixels), *table)
    return table


def draw(random: np.random.Generator, pixels: int, power: float) -> tuple[np.ndarray, np.ndarray]:
    """Confidences in 1/2..1, right with that probability raised to a power; 1 is calibrated."""
    confidence = 1 - random.beta(0.5, 1.0, pixels) / 2
    return confidence, random.random(pixels) < confidence**power


def test_ece_of_any_number_of_bins(rng: np.random.Generator) -> None:
    confidence, right = draw(rng, 3000, 2.0)
    many = [1, 2, 7, 10, 33, 100]
    found = ece_by_bins(cells_of(confidence, right), many)
    for bins, value in zip(many, found, strict=True):
        where = np.ceil(confidence * bins).astype(int)
        exact = sum(abs((right - confidence)[where == k].sum()) for k in range(1, bins + 1)) / 3000
        assert value == pytest.approx(exact, abs=2e-3)


def reflected_kernel(t: np.ndarray, place: np.ndarray, width: float) -> np.ndarray:
    """A Gaussian at each place, folded back into 0..1 at both ends as often as needed."""
    images = [2 * k + sign * place for k in range(-2, 3) for sign in (1, -1)]
    total = sum(np.exp(-(((t[:, None] - image[None]) / width) ** 2) / 2) for image in images)
    return total / (width * math.sqrt(2 * math.pi))


def slow_smooth_ece(confidence: np.ndarray, right: np.ndarray) -> float:
    """Błasiok and Nakkiran's definition: the width at which the integral of |E K(t, f) (y - f)| equals the width."""
    t = (np.arange(1500) + 0.5) / 1500

    def error(width: float) -> float:
        return float(np.abs(reflected_kernel(t, confidence, width) @ (right - confidence)).mean()) / confidence.size

    low, high = 1e-3, 1.0
    for _ in range(14):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return math.sqrt(low * high)


@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
def test_smooth_ece_against_the_definition(rng: np.random.Generator, power: float) -> None:
    confidence, right = draw(rng, 120, power)
    assert smooth_ece(cells_of(confidence, right)) == pytest.approx(slow_smooth_ece(confidence, right), rel=2e-3)


def test_smooth_ece_by_hand() -> None:
    """One confidence of 1/2 and a constant residual r: any kernel keeps the integral |r|, so the error is |r|."""
    right = np.arange(100) < 80
    with np.errstate(all="raise"):  # as a program may set it
        assert smooth_ece(cells_of(np.full(100, 0.5), right)) == pytest.approx(0.3, abs=1e-6)
    assert smooth_ece(cells_of(np.full(100, 0.5), np.arange(100) < 50)) == pytest.approx(0, abs=1e-6)


def test_no_pixels_no_value() -> None:
    assert math.isnan(smooth_ece(empty_cells(2)))
    assert np.isnan(ece_by_bins(empty_cells(2), [5, 10])).all()


@pytest.mark.parametrize("place", [0.0, 0.3, 0.5, 1.0])
def test_the_grid_shares_weights_between_two_neighbours(place: float) -> None:
    grid = _on_grid(np.array([2.0]), np.array([place]))
    assert grid.min() >= 0
    assert grid.sum() == pytest.approx(2.0)
    centres = (np.arange(grid.size) + 0.5) / grid.size
    assert grid @ centres / 2 == pytest.approx(np.clip(place, centres[0], centres[-1]))


def test_occupied_cells_are_taken_and_added(rng: np.random.Generator) -> None:
    table, again = cells_of(*draw(rng, 500, 1.0)), empty_cells(2)
    whole = [field.clone() for field in table]
    occupied = take_cells(table, [1, 0])
    assert not any(field.any() for field in table)
    assert len(occupied.position) == int((whole[0] > 0).sum())
    add_cells(occupied, again)
    assert all(torch.equal(one, other) for one, other in zip(again, whole, strict=True))
    assert len(take_cells(again, []).position) == 0
