"""Beta calibration against netcal, scipy on the uncompressed scores, and known coefficients."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from segcal.calibrators import BetaCalibration
from segcal.calibrators.scores import fit_beta
from segcal.types import Case
from support.flat import scores_of
from support.scenes import flat_case


def features_of(p: np.ndarray) -> np.ndarray:
    return np.stack([np.log(np.clip(p, 2.0**-52, 1)), -np.log(np.clip(1 - p, 2.0**-52, 1)), np.ones_like(p)])


def mean_nll(weights: np.ndarray, p: np.ndarray, truth: np.ndarray) -> float:
    u = weights @ features_of(p)
    return float((np.logaddexp(0, u) - truth * u).mean())


def slow_fit(p: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Every score by itself, and a general solver with bounds."""
    x = features_of(p)

    def value_and_slope(w: np.ndarray) -> tuple[float, np.ndarray]:
        return mean_nll(w, p, truth), x @ (expit(w @ x) - truth) / len(p)

    bounds = [(0, None), (0, None), (None, None)]
    start = np.array([1.0, 1.0, 0.0])
    return minimize(value_and_slope, start, jac=True, bounds=bounds, tol=1e-14, options={"maxiter": 5000}).x


def test_agrees_with_scipy_on_every_score() -> None:
    case = flat_case(5_000)
    probs, truth = scores_of(case)
    found = BetaCalibration(4).fit([case]).coefficients.numpy()
    for c in range(4):
        slow = slow_fit(probs[c], truth[c])
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
    np.testing.assert_allclose(found, slow_fit(p, truth), atol=1e-4)


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
