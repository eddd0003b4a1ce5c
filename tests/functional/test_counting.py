"""Labels that are moved, and batches that are not yet checked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from segcal.functional.counting import (
    Totals,
    add_unchecked_batch,
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
    """Two batches of 2 x 15 pixels against loops over those that are valid; 9 is ignored, 3 and -1 are no classes."""
    totals, problems = empty_totals(2, 3, 10), torch.zeros(2, dtype=torch.int64)
    valid: list[list[tuple[np.ndarray, int]]] = [[], []]
    for number, bad_label, bad_score in ((1, 11, 20), (2, 4, 7)):
        logits, labels = rng.normal(scale=3, size=(2, 3, 15)), rng.choice([0, 1, 2, 9], size=(2, 15))
        labels.flat[[bad_label, bad_label + 1]] = (3, -1)
        for place, score in enumerate((np.nan, np.inf, [-np.inf] * 3), start=bad_score):
            logits[place // 15, :, place % 15] = score if place > bad_score else [0.0, score, 1.0]
        logits[0, 1, 0] = -np.inf  # an impossible class is no problem
        masks = rng.random((2, 2, 15)) < 0.6 if masked else np.ones((2, 2, 15), bool)
        for image, pixel in np.ndindex(2, 15):
            scores, label = logits[image, :, pixel], labels[image, pixel]
            if label in range(3) and not np.isnan(scores).any() and np.isfinite(scores.max()):
                for region in np.flatnonzero(masks[:, image, pixel]):
                    valid[region].append(
                        (np.where(np.isneginf(scores), scores.max() - 87.3365447505531, scores), label)
                    )
        add_unchecked_batch(
            *(torch.from_numpy(part) for part in (logits, labels)), torch.from_numpy(masks) if masked else None,
            torch.tensor([9]), torch.from_numpy(references.equal_edges(10)), totals, problems, number,
        )  # fmt: skip
        assert [place_of_problem(problem) for problem in problems.tolist()] == [(1, 11), (1, 20)], "the first stays"
    for region, pixels in enumerate(valid):
        z, y = np.stack([scores for scores, _ in pixels], axis=1), np.array([label for _, label in pixels])
        _, predicted, confidence = references.confidences(z)
        cells = references.fill(confidence, predicted == y, predicted, references.equal_edges(10))
        for name, reading in (("pixels", len), ("hit", lambda own: sum(right for _, right in own)),
                              ("confidence", lambda own: sum(value for value, _ in own))):  # fmt: skip
            table = [[reading(cells.get((c, b), [])) for b in range(10)] for c in range(3)]
            np.testing.assert_allclose(getattr(totals, name)[region], table, rtol=1e-12)
        assert totals.support[region].tolist() == np.bincount(y, minlength=3).tolist()
        expected = references.readings(z, y)
        means = [expected[name] for name in ("nll", "brier", "entropy")]
        np.testing.assert_allclose(totals.sums[region] / len(y), means, rtol=1e-9)
        for fine, coarse in ((totals.cell_count, totals.pixels), (totals.cell_hit, totals.hit)):
            assert fine[region].sum(dim=-1).tolist() == coarse[region].sum(dim=-1).tolist()
        torch.testing.assert_close(totals.cell_confidence[region].sum(-1), totals.confidence[region].sum(-1))
