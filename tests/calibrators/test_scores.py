"""Histogram binning, isotonic regression and beta calibration against netcal, scikit-learn and scipy, and by hand."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression, minimize
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression as Peer

import segcal
from segcal.calibrators import BetaCalibration, HistogramBinning, IsotonicRegression
from segcal.calibrators.scores import equal_mass, error_bound, fit_beta, increasing_map
from segcal.functional.scores import apply_map, cell_of, count_scores, empty_scores, largest_of_cells, mean_distances
from segcal.types import Case
from support.flat import scores_of
from support.scenes import flat_case


@pytest.mark.parametrize("bins", [5, 10, 15])
def test_histogram_binning_agrees_with_netcal(bins: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Peer = pytest.importorskip("netcal.binning").HistogramBinning
    case = flat_case(20_000)
    probs, _ = scores_of(case)
    peer = Peer(bins).fit(probs.T, np.asarray(case.labels)[:, 0]).transform(probs.T)
    found = HistogramBinning(4, bins=bins).fit([case])
    ours = found.predict_proba(torch.from_numpy(np.asarray(case.logits))[None])[0, :, :, 0].numpy()
    np.testing.assert_allclose(ours, peer.T, rtol=0, atol=1e-7)  # netcal has no tie-break of 1e-9


def test_histogram_binning_by_hand() -> None:
    """Scores of 0.7 and 0.3 in two bins: of the first class 3 of 4 are true above 1/2, none of 1 below."""
    logits = np.array([[np.log(7 / 3)] * 4 + [np.log(3 / 7)], [0.0] * 5])[:, :, np.newaxis]
    labels = np.array([0, 0, 0, 1, 1])[:, np.newaxis]
    found = HistogramBinning(2, bins=2).fit([Case("a", logits, labels)])
    values = found.predict_proba(torch.tensor([[[2.0, -2.0, 0.0], [0.0, 0.0, 0.0]]]))[0, 0]
    # a score of exactly 1/2 is in the lower bin, which says 0 for the first class and 1/4 for the second
    assert values.tolist() == pytest.approx([3 / 4, 0.0, 0.0], abs=1e-6)
    assert found.fit_report_.warnings == ()


def test_an_empty_bin_answers_with_its_middle() -> None:
    logits = np.array([[2.0, 2.0], [0.0, 0.0]])[:, :, np.newaxis]
    found = HistogramBinning(2, bins=4).fit([Case("a", logits, np.array([[0], [1]]))])
    assert found.left[0].tolist() == [0.125, 0.375, 0.625, 0.5]
    assert found.left[1].tolist() == [0.5, 0.375, 0.625, 0.875]
    assert found.fit_report_.warnings == ("6 bins without a score answer with their middle",)
    assert found.fit_report_.details == {"empty_bins": 6}


def test_where_all_bins_say_nothing_the_probabilities_stay() -> None:
    """Three classes with a bin each that was never true: what is left is the tie-break."""
    found = HistogramBinning(3, bins=2).fit([Case("a", np.array([[4.0], [0], [0]])[:, :, np.newaxis], np.array([[0]]))])
    for name in ("left", "right"):
        getattr(found, name).fill_(0.0)
    logits = torch.tensor([[[1.0], [0.5], [0.0]]])
    torch.testing.assert_close(found.predict_proba(logits), torch.softmax(logits, dim=1))


def test_bins_of_equal_mass_hold_equally_many_scores() -> None:
    case = flat_case(30_000)
    probs, truth = scores_of(case)
    table = empty_scores(4)
    count_scores(torch.from_numpy(np.asarray(case.logits)[:, :, 0]), torch.from_numpy(truth.argmax(0)), table)
    found = HistogramBinning(4, bins=8, equal="mass").fit([case])
    for c in range(4):
        edges, total, hits = equal_mass(table.total[c], table.hits[c], 8)
        exact = np.quantile(probs[c], np.arange(1, 8) / 8)
        near = np.minimum(exact, 1 - exact)
        assert (np.abs(edges.numpy() - exact) <= 2.0**-8 * near).all(), "within a cell of the quantiles"
        assert (np.abs(total.numpy() - 30_000 / 8) < 100).all()
        where = (probs[c][:, np.newaxis] > edges.numpy()).sum(axis=1)
        assert total.tolist() == np.bincount(where).tolist(), "exact between those edges"
        assert hits.tolist() == np.bincount(where, weights=truth[c]).tolist()
        assert found.left[c].tolist() == pytest.approx((hits / total).tolist())


def test_quantiles_in_one_cell_share_an_edge() -> None:
    total = torch.zeros(1 << 16, dtype=torch.int64)
    total[100], total[40_000] = 97, 3
    edges, bins, hits = equal_mass(total, total // 3, 10)
    assert edges.tolist() == [float(largest_of_cells()[100])]
    assert bins.tolist() == [97, 3]
    assert hits.tolist() == [32, 1]
    alone = torch.zeros_like(total)
    alone[7] = 5
    edges, bins, _ = equal_mass(alone, alone, 10)
    assert (len(edges), bins.tolist()) == (0, [5])


def expected(peers: list[Peer], probs: np.ndarray) -> np.ndarray:
    """scikit-learn's answers with the tie-break, normalised."""
    mapped = np.stack([peers[min(c, len(peers) - 1)].predict(p) for c, p in enumerate(probs)]) + 1e-9 * probs
    return mapped / mapped.sum(axis=0)


def increasing_fit(probs: np.ndarray, truth: np.ndarray) -> np.ndarray:
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
    exact = increasing_fit(probs, truth)
    bound = error_bound(total, hits)
    excess = np.square(ours - truth).mean() - np.square(exact - truth).mean()
    assert 0 <= excess <= bound < 0.01
    assert np.square(ours - exact).mean() <= excess + 1e-12, "Pythagoras, for projections onto a cone"


def test_isotonic_regression_by_hand() -> None:
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


def test_one_vs_rest_is_saved_and_loaded(tmp_path: Path) -> None:
    case = flat_case(500)
    found = IsotonicRegression(4, scope="one-vs-rest", ignore_index=9).fit([case])
    found.save(tmp_path / "saved")
    loaded = segcal.load(tmp_path / "saved")
    assert isinstance(loaded, IsotonicRegression)
    assert loaded.scope == "one-vs-rest"
    assert not loaded.preserves_labels
    assert loaded.fit_report_ == found.fit_report_
    logits = torch.from_numpy(np.asarray(case.logits))[None]
    assert torch.equal(loaded(logits), found(logits))


def features_of(p: np.ndarray) -> np.ndarray:
    return np.stack([np.log(np.clip(p, 2.0**-52, 1)), -np.log(np.clip(1 - p, 2.0**-52, 1)), np.ones_like(p)])


def mean_nll(weights: np.ndarray, p: np.ndarray, truth: np.ndarray) -> float:
    u = weights @ features_of(p)
    return float((np.logaddexp(0, u) - truth * u).mean())


def bounded_fit(p: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Every score by itself, and a general solver with bounds."""
    x = features_of(p)

    def value_and_slope(w: np.ndarray) -> tuple[float, np.ndarray]:
        return mean_nll(w, p, truth), x @ (expit(w @ x) - truth) / len(p)

    bounds = [(0, None), (0, None), (None, None)]
    start = np.array([1.0, 1.0, 0.0])
    return minimize(value_and_slope, start, jac=True, bounds=bounds, tol=1e-14, options={"maxiter": 5000}).x


def test_beta_calibration_agrees_with_scipy_on_every_score() -> None:
    case = flat_case(5_000)
    probs, truth = scores_of(case)
    found = BetaCalibration(4).fit([case]).coefficients.numpy()
    for c in range(4):
        slow = bounded_fit(probs[c], truth[c])
        np.testing.assert_allclose(found[c], slow, atol=2e-4)
        excess = mean_nll(found[c], probs[c], truth[c]) - mean_nll(slow, probs[c], truth[c])
        assert excess < 1e-9 < found[c, :2].sum() * 2.0**-9, "well within the bound of the cells"


def test_known_coefficients_are_found() -> None:
    random = np.random.default_rng(0)
    p = expit(3 * random.normal(size=100_000))
    wanted = np.array([0.5, 1.5, -0.7])
    total = np.full(len(p), 1e6)
    x = features_of(p)
    found = fit_beta(x[0], x[1], total, total * expit(wanted @ x))
    np.testing.assert_allclose(found.coefficients, wanted, atol=1e-9)
    assert found.converged
    assert found.steps < 15


@pytest.mark.parametrize(
    ("wanted", "zero"), [((-0.5, 1.0, 0.2), [0]), ((1.0, -0.5, 0.2), [1]), ((-0.5, -0.5, 1.0), [0, 1])], ids=str
)
def test_negative_coefficients_are_kept_at_zero(wanted: tuple[float, ...], zero: list[int]) -> None:
    random = np.random.default_rng(0)
    p = expit(2 * random.normal(size=4000))
    truth = (random.random(4000) < expit(np.array(wanted) @ features_of(p))).astype(float)
    x = features_of(p)
    found = fit_beta(x[0], x[1], np.ones(4000), truth).coefficients
    assert [k for k in (0, 1) if found[k] == 0] == zero
    np.testing.assert_allclose(found, bounded_fit(p, truth), atol=1e-4)


def test_perfect_scores_are_kept_and_the_answer_is_finite() -> None:
    """Calibrated scores give the identity; separable ones would send the coefficients to infinity."""
    random = np.random.default_rng(0)
    p = expit(3 * random.normal(size=2000))
    x, total = features_of(p), np.full(2000, 1e4)
    np.testing.assert_allclose(fit_beta(x[0], x[1], total, total * p).coefficients, [1, 1, 0], atol=1e-6)
    apart = fit_beta(x[0], x[1], np.ones(2000), (p > 0.5).astype(float))
    assert np.isfinite(apart.coefficients).all()
    answers = expit(apart.coefficients @ x)
    assert answers[p > 0.6].min() > 0.99
    assert answers[p < 0.4].max() < 0.01


def test_a_score_that_says_nothing_is_reported() -> None:
    """The least likely class is always the true one: the best increasing map is level."""
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, 500, 1))
    found = BetaCalibration(2).fit([Case("a", logits, logits.argmin(axis=0))])
    assert (found.coefficients[:, :2] == 0).all()
    assert any("the score says nothing of class 0, 1" in line for line in found.fit_report_.warnings)
