"""Labels that are moved, and batches that are not yet checked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from segcal.functional.counting import (
    Totals,
    add_unchecked_batch,
    measure_batch,
    place_of_problem,
)
from segcal.functional.pixels import moved_labels
from segcal.kernels.constants import CELLS
from support import references


def test_moved_labels_by_hand() -> None:
    """Of three pixels one keeps its label, one is moved, and one is tied, where the first class wins."""
    logits = torch.tensor([[2.0, 2.0, 2.0], [1.0, 1.0, 1.0]])
    scores = torch.tensor([[0.9, 0.4, 0.5], [0.1, 0.6, 0.5]])
    assert moved_labels(scores, logits) == 1
    assert moved_labels(scores.half(), logits) == 1


def empty_totals(regions: int, classes: int, bins: int) -> Totals:
    shapes = [(classes, bins)] * 3 + [(classes,), (3,)] + [(classes, CELLS)] * 3
    sums = ("confidence", "sums", "cell_confidence")
    return Totals(
        *(
            torch.zeros(regions, *shape, dtype=torch.float64 if name in sums else torch.int64)
            for name, shape in zip(Totals._fields, shapes, strict=True)
        )
    )


@pytest.mark.parametrize("masked", [False, True])
def test_unchecked_batches_are_counted_without_their_invalid_pixels(rng: np.random.Generator, masked: bool) -> None:
    """Two batches of 2 x 15 pixels as checked ones; 9 is ignored, 3 and -1 are no classes."""
    totals, problems, expected = empty_totals(2, 3, 10), torch.zeros(2, dtype=torch.int64), empty_totals(2, 3, 10)
    edges = torch.from_numpy(references.equal_edges(10))
    for number, bad_label, bad_score in ((1, 11, 20), (2, 4, 7)):
        logits = torch.from_numpy(rng.normal(scale=3, size=(2, 3, 15)))
        labels = torch.from_numpy(rng.choice([0, 1, 2, 9], size=(2, 15)))
        masks = torch.from_numpy(rng.random((2, 2, 15)) < 0.6) if masked else torch.ones(2, 2, 15, dtype=torch.bool)
        logits[0, 1, 0], fine = -torch.inf, logits.clone()  # an impossible class is no problem
        top = fine[0, [0, 2], 0].max()
        fine[0, 1, 0], kept = top - 87.3365447505531, torch.where(labels == 9, -1, labels)
        labels.view(-1)[bad_label : bad_label + 2] = torch.tensor([3, -1])
        kept.view(-1)[bad_label : bad_label + 2] = -1
        for place, scores in enumerate(([0.0, torch.nan, 1.0], [torch.inf] * 3, [-torch.inf] * 3), start=bad_score):
            logits[place // 15, :, place % 15] = torch.tensor(scores)
            kept[place // 15, place % 15] = -1
        add_unchecked_batch(
            logits, labels, masks if masked else None, torch.tensor([9]), edges, totals, problems, number
        )
        for total, value in zip(expected, measure_batch(fine, kept, masks, edges, *expected[5:]), strict=False):
            total.add_(value)
        assert [place_of_problem(problem) for problem in problems.tolist()] == [(1, 11), (1, 20)], "the first stays"
    for found, wanted in zip(totals, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
