"""Sums in fixed point: the same bits in any order, and as exact as promised."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from segcal.functional.counting import cell_confidence, cell_of, count_cells_exactly
from segcal.functional.pixels import moved_labels
from segcal.functional.random_labels import class_mass
from segcal.kernels.constants import CELL_BASES, CELL_UNIT, CELLS
from segcal.kernels.dispatch import plain_only


def counted(confidence: np.ndarray, order: np.ndarray) -> list[Tensor]:
    """Fill tables of two classes, which pixels take turns in, going through the pixels in an order."""
    found = [torch.zeros(2, CELLS, dtype=torch.int64) for _ in range(3)]
    predicted = torch.arange(confidence.size, dtype=torch.int32) % 2
    labels = (torch.arange(confidence.size) // 2) % 2
    count_cells_exactly(torch.from_numpy(order), torch.from_numpy(confidence), predicted, labels, *found)
    return found


def test_bases_are_those_of_their_cells() -> None:
    """The base of a cell lies on its edge, so that the distance to it is at most the width of the cell."""
    values = np.concatenate([np.geomspace(1e-9, 1, 5000), 1 - np.geomspace(1e-17, 0.5, 5000), [0.0, 0.5, 1.0]])
    cells = cell_of(torch.from_numpy(values)).numpy()
    assert np.abs(values - CELL_BASES[cells]).max() <= 2.0**-11
    assert (np.diff(CELL_BASES) >= 0).all()


@pytest.mark.parametrize("plain", [False, True])
def test_no_order_and_no_division_changes_a_bit(rng: np.random.Generator, plain: bool) -> None:
    confidence = np.concatenate([1 - rng.random(3000) ** 8, rng.random(500), [0.0, 0.5, 1.0]])
    every = np.arange(confidence.size)
    whole = counted(confidence, every)
    shuffled = rng.permutation(every)
    parts = [counted(confidence, np.sort(part)) for part in np.array_split(shuffled, 7)]
    for k in range(3):
        assert torch.equal(whole[k], sum(part[k] for part in parts))
    if plain:
        with plain_only():
            assert all(torch.equal(one, other) for one, other in zip(whole, counted(confidence, every), strict=True))
    totals = cell_confidence(whole[0], whole[2]).sum()
    assert abs(float(totals) - float(np.sum(confidence.astype(np.longdouble)))) < confidence.size * CELL_UNIT


def test_one_pixel_by_hand() -> None:
    count, hit, excess = counted(np.array([0.75]), np.array([0]))
    cell = int(cell_of(torch.tensor([0.75]).double()))
    assert (int(count[0, cell]), int(hit[0, cell]), int(count.sum())) == (1, 1, 1)
    assert CELL_BASES[cell] + int(excess[0, cell]) * CELL_UNIT == 0.75
    assert float(cell_confidence(count, excess)[0, cell]) == 0.75


def test_masses_do_not_depend_on_threads(rng: np.random.Generator, set_threads: Callable[[int], None]) -> None:
    logits, labels = torch.from_numpy(rng.normal(size=(3, 40_001))), torch.from_numpy(rng.integers(-1, 3, 40_001))
    found = []
    for threads in (1, 2, 3):
        set_threads(threads)
        found.append(class_mass(logits, labels))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_moved_labels_by_hand() -> None:
    """Of three pixels one keeps its label, one is moved, and one is tied, where the first class wins."""
    logits = torch.tensor([[2.0, 2.0, 2.0], [1.0, 1.0, 1.0]])
    scores = torch.tensor([[0.9, 0.4, 0.5], [0.1, 0.6, 0.5]])
    assert moved_labels(scores, logits) == 1
    assert moved_labels(scores.half(), logits) == 1
    with plain_only():
        assert moved_labels(scores, logits) == 1
