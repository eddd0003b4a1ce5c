"""Ensemble temperature scaling against scipy's SLSQP on the whole table, for both losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import softmax

from segcal.calibrators import EnsembleTemperatureScaling, TemperatureScaling
from segcal.functional.scaling import least_on_simplex
from segcal.text import CalibrationWarning
from segcal.types import Case
from support.flat import mean_nll, table
from support.scenes import noisy


def slsqp(parts: np.ndarray, labels: np.ndarray, loss: str) -> tuple[np.ndarray, float]:
    """Weights of least loss for probabilities `[3, N, L]`, and the loss."""
    truth = np.eye(parts.shape[2])[labels]

    def objective(weights: np.ndarray) -> float:
        mixed = np.tensordot(weights, parts, 1)
        if loss == "squared_error":
            return float(((mixed - truth) ** 2).sum(axis=1).mean())
        return float(-np.log(np.maximum(mixed[np.arange(len(labels)), labels], 1e-300)).mean())

    limits = {"bounds": [(0, 1)] * 3, "constraints": {"type": "eq", "fun": lambda w: w.sum() - 1}}
    found = minimize(objective, np.full(3, 1 / 3), method="SLSQP", options={"ftol": 1e-15, "maxiter": 500}, **limits)
    return found.x, float(found.fun)


def squared_error(z: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    return float(((softmax(z / temperature, axis=1) - np.eye(z.shape[1])[labels]) ** 2).sum(axis=1).mean())


def heavy_tailed(seed: int = 0) -> list[Case]:
    """Some pixels are labelled at random however sure the network is, so that the uniform part is needed."""
    rng = np.random.default_rng(seed)
    cases = []
    for case in noisy(classes=4, seed=seed):
        chance = rng.uniform(size=np.shape(case.labels)) < 0.1
        labels = np.where(chance, rng.integers(0, 4, chance.shape), np.asarray(case.logits).argmax(axis=0))
        cases.append(Case(case.name, 4 * np.asarray(case.logits), labels))
    return cases


@pytest.mark.parametrize(
    ("make", "loss"), [(noisy, "cross_entropy"), (heavy_tailed, "cross_entropy"), (noisy, "squared_error")]
)
def test_agrees_with_slsqp(make, loss: str) -> None:  # type: ignore[no-untyped-def]
    cases = make()
    z, labels = table(cases)
    ours = EnsembleTemperatureScaling(4, loss=loss).fit(cases)  # type: ignore[arg-type]
    temperature = float(ours.temperature)
    of_least_nll = TemperatureScaling(4).fit(cases).fit_report_.details["temperature"]
    if loss == "cross_entropy":
        assert temperature == of_least_nll
    else:
        tried = [*np.geomspace(0.05, 100, 80), *(temperature * np.array([0.999, 1.001]))]
        assert squared_error(z, labels, temperature) < min(squared_error(z, labels, t) for t in tried)
        assert temperature != pytest.approx(of_least_nll, rel=1e-3)
    parts = np.stack([softmax(z / temperature, axis=1), softmax(z, axis=1), np.full(z.shape, 1 / 4)])
    weights, value = slsqp(parts, labels, loss)
    mixed = np.tensordot(ours.weights.numpy(), parts, 1)
    # SLSQP stops within 1e-8 of the optimum; the weights then differ by the root of that
    np.testing.assert_allclose(ours.weights, weights, atol=2e-4)
    assert float(ours.weights.sum()) == pytest.approx(1, abs=1e-12)
    assert (ours.weights >= 0).all()
    if loss == "cross_entropy":
        assert mean_nll(np.log(mixed), labels) <= value + 1e-12
        assert mean_nll(np.log(mixed), labels) == pytest.approx(value, abs=1e-7)
        assert ours.fit_report_.nll_after <= ours.fit_report_.nll_before
        assert 0.05 < ours.weights[2] < 0.15 or make is noisy, "a tenth of the labels is drawn at random"
    else:
        assert ((mixed - np.eye(4)[labels]) ** 2).sum(axis=1).mean() == pytest.approx(value, abs=1e-9)
    assert ours.fit_report_.nll_after == pytest.approx(mean_nll(np.log(mixed), labels), abs=1e-12)
    assert ours.fit_report_.details["weights"]["raw"] == float(ours.weights[1])
    np.testing.assert_allclose(ours.predict_proba(torch.from_numpy(z)), mixed, atol=1e-12)


def test_a_temperature_at_the_bound_is_told() -> None:
    """Nearly every pixel is right, so that the squared error falls with the temperature, as far as it is tried."""
    with pytest.warns(CalibrationWarning, match="the optimum is out of bounds, 0.05 is used"):
        ours = EnsembleTemperatureScaling(4, loss="squared_error").fit(heavy_tailed())
    assert float(ours.temperature) == pytest.approx(0.05, rel=1e-5)


@given(st.integers(0, 2**32 - 1))
def test_the_least_point_of_the_simplex(seed: int) -> None:
    """No point of a fine grid of the simplex is better."""
    rng = np.random.default_rng(seed)
    root, slope = rng.normal(size=(3, 3)), 3 * rng.normal(size=3)
    curvature = root @ root.T
    found = least_on_simplex(curvature, slope)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1)
    grid = np.array([(i, j, 40 - i - j) for i in range(41) for j in range(41 - i)]) / 40
    values = np.einsum("ni,ij,nj->n", grid, curvature, grid) / 2 + grid @ slope
    assert found @ curvature @ found / 2 + slope @ found <= values.min() + 1e-9


def test_equal_parts_have_an_answer() -> None:
    """At a temperature of 1 the scaled and the raw part are the same, and their weights are not unique."""
    found = least_on_simplex(
        np.array([[2.0, 2.0, 1.0], [2.0, 2.0, 1.0], [1.0, 1.0, 1.0]]), np.array([-2.0, -2.0, -1.0])
    )
    assert found.sum() == pytest.approx(1)
    assert found[2] == pytest.approx(0, abs=1e-9)
