"""Isotonic regression against scikit-learn, its bound, and data that say little."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression
from sklearn.isotonic import IsotonicRegression as Peer

import segcal
from segcal.calibrators import IsotonicRegression
from segcal.calibrators.isotonic import error_bound, increasing_map
from segcal.functional.scores import apply_map, cell_of, count_scores, empty_scores, mean_distances
from segcal.types import Case
from support.flat import scores_of
from support.scenes import flat_case


def expected(peers: list[Peer], probs: np.ndarray) -> np.ndarray:
    """scikit-learn's answers with the tie-break, normalised."""
    mapped = np.stack([peers[min(c, len(peers) - 1)].predict(p) for c, p in enumerate(probs)]) + 1e-9 * probs
    return mapped / mapped.sum(axis=0)


def slow_fit(probs: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The increasing function of least squares at each score, without cells."""
    _, where, many = np.unique(probs, return_inverse=True, return_counts=True)
    return isotonic_regression(np.bincount(where, weights=truth) / many, weights=many).x[where]


@pytest.mark.parametrize("scope", ["pooled", "one-vs-rest"])
def test_one_score_to_a_cell_is_scikit_learns_fit(scope: str) -> None:
    case = flat_case(5000, distinct=25)
    probs, truth = scores_of(case)
    cells = cell_of(torch.from_numpy(np.unique(probs.round(13))))
    assert len(cells.unique()) == len(cells), "the data must be as the test says"
    peer = Peer(out_of_bounds="clip")
    if scope == "pooled":
        peers = [peer.fit(probs.ravel(), truth.ravel())]
    else:
        peers = [Peer(out_of_bounds="clip").fit(p, t) for p, t in zip(probs, truth, strict=True)]
    found = IsotonicRegression(4, scope=scope).fit([case])  # type: ignore[arg-type]
    for other in (case, flat_case(500, seed=1)):  # the scores that were fitted, and others between them
        logits = torch.from_numpy(np.asarray(other.logits))[None]
        ours = found.predict_proba(logits)[0, :, :, 0].numpy()
        np.testing.assert_allclose(ours, expected(peers, scores_of(other)[0]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("scale", [0.2, 1.0, 6.0])
def test_pooling_in_cells_costs_no_more_than_its_bound(scale: float) -> None:
    """Against every distinct score by itself (scikit-learn takes those within 1e-15 of each other as one)."""
    case = flat_case(20_000, classes=3)
    logits = torch.from_numpy(scale * np.asarray(case.logits))
    probs, truth = (values.ravel() for values in scores_of(Case("scaled", logits.numpy(), case.labels)))
    table = empty_scores(3)
    count_scores(logits[:, :, 0], torch.from_numpy(np.asarray(case.labels)[:, 0]), table)
    total, hits = (field.sum(dim=0).numpy() for field in (table.total, table.hits))
    score = mean_distances(type(table)(*(field.sum(dim=0, keepdim=True) for field in table)))[0][0].numpy()
    line = increasing_map(score, total, hits)
    at_cells = torch.from_numpy(score[cell_of(torch.from_numpy(probs)).numpy()])
    ours = apply_map(at_cells.view(1, 1, -1), line).flatten().numpy() - 1e-9 * at_cells.numpy()
    exact = slow_fit(probs, truth)
    bound = error_bound(total, hits)
    excess = np.square(ours - truth).mean() - np.square(exact - truth).mean()
    assert 0 <= excess <= bound < 0.01
    assert np.square(ours - exact).mean() <= excess + 1e-12, "Pythagoras, for projections onto a cone"


def test_on_many_scores_the_answers_are_close_to_scikit_learns() -> None:
    case = flat_case(100_000)
    probs, truth = scores_of(case)
    peer = Peer(out_of_bounds="clip").fit(probs.ravel(), truth.ravel())
    found = IsotonicRegression(4).fit([case])
    ours = found.predict_proba(torch.from_numpy(np.asarray(case.logits))[None])[0, :, :, 0].numpy()
    difference = np.abs(ours - expected([peer], probs))
    assert difference.mean() < 1e-3
    assert np.quantile(difference, 0.999) < 1e-2
    report = found.fit_report_
    assert report.nll_after < report.nll_before
    assert report.details["error_bound"] < 1e-3
    assert report.details["knots"] == found.breaks.shape[1]


def test_by_hand() -> None:
    """Four scores of 0.8 of which one is true, four of 0.9 of which two are: 1/4 and 1/2, and 3/4 and 1/2 opposite."""
    at = [np.log(4.0)] * 4 + [np.log(9.0)] * 4
    logits = np.stack([at, np.zeros(8)])[:, :, np.newaxis]
    labels = np.array([0, 1, 1, 1, 0, 0, 1, 1])[:, np.newaxis]
    found = IsotonicRegression(2, scope="one-vs-rest").fit([Case("a", logits, labels)])
    values = found.predict_proba(torch.tensor([[[np.log(4.0), np.log(6.0), np.log(9.0), 50.0], [0.0] * 4]]))
    between = 1 / 4 + (6 / 7 - 4 / 5) / (9 / 10 - 4 / 5) / 4
    # 0.1 and 0.2 of the other class are true in 1/2 and 3/4 of the pixels
    expected_other = 1 / 2 + (1 / 7 - 1 / 10) / (2 / 10 - 1 / 10) / 4
    total = between + expected_other
    assert values[0, 0].tolist() == pytest.approx([1 / 4, between / total, 1 / 2, 1 / 2], abs=1e-6)


def test_only_the_pooled_form_keeps_labels() -> None:
    case = flat_case(3000)
    logits = torch.from_numpy(np.asarray(case.logits))[None]
    pooled, apart = (IsotonicRegression(4, scope=scope).fit([case]) for scope in ("pooled", "one-vs-rest"))  # type: ignore[arg-type]
    assert pooled.preserves_labels
    assert not apart.preserves_labels
    assert torch.equal(pooled(logits).argmax(1), logits.argmax(1))
    assert not torch.equal(apart(logits).argmax(1), logits.argmax(1))


def test_one_vs_rest_is_saved_and_loaded(tmp_path: Path) -> None:
    case = flat_case(500)
    found = IsotonicRegression(4, scope="one-vs-rest", ignore_index=9).fit([case])
    found.save(tmp_path / "saved")
    loaded = segcal.load(tmp_path / "saved")
    assert isinstance(loaded, IsotonicRegression)
    assert loaded.scope == "one-vs-rest"
    assert loaded.fit_report_ == found.fit_report_
    logits = torch.from_numpy(np.asarray(case.logits))[None]
    assert torch.equal(loaded(logits), found(logits))
