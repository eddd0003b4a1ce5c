"""Attended temperature scaling against a slow loop over pixels and classes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from segcal.calibrators import AttendedTemperatureScaling, create
from segcal.functional.scaling import attended_sums
from segcal.types import Case
from support.flat import mean_nll, table
from support.references import softmax
from support.scenes import noisy


def attended_loss(z: np.ndarray, labels: np.ndarray, threshold: float, alpha: float) -> tuple[float, int]:
    """Summed over classes and their samples, own and borrowed; and how many were borrowed."""
    raw, scaled = softmax(z.T), softmax(alpha * z.T)
    terms, borrowed = [], 0
    for k in range(z.shape[1]):
        for n, label in enumerate(labels):
            if label == k:
                terms.append(-math.log(scaled[k, n]))
            elif raw[k, n] >= threshold:
                others = math.fsum(scaled[j, n] for j in range(z.shape[1]) if j != k)
                terms.append(-math.log(others))
                borrowed += 1
    return math.fsum(terms), borrowed


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [Case(case.name, 1.5 * np.asarray(case.logits), case.labels) for case in noisy(2, size=(12, 10), seed=4)]


@pytest.mark.parametrize("threshold", [0.01, 0.1, 0.6])
def test_agrees_with_a_slow_loop(cases: list[Case], threshold: float) -> None:
    z, labels = table(cases)
    found = minimize_scalar(
        lambda alpha: attended_loss(z, labels, threshold, alpha)[0],
        bounds=(0.05, 5), method="bounded", options={"xatol": 1e-9},
    )  # fmt: skip
    ours = AttendedTemperatureScaling(4, threshold=threshold).fit(cases)
    # a minimum is known to the root of the precision at best
    assert float(ours.inverse_temperature) == pytest.approx(found.x, rel=1e-6)
    assert ours.fit_report_.details["attended"] == attended_loss(z, labels, threshold, 1.0)[1] > 0
    assert ours.fit_report_.converged
    temperature = ours.fit_report_.details["temperature"]
    assert ours.fit_report_.nll_after == pytest.approx(mean_nll(z / temperature, labels), rel=1e-12)
    assert ours.fit_report_.nll_before == pytest.approx(mean_nll(z, labels), rel=1e-12)


def test_derivatives_are_those_of_the_loss(cases: list[Case]) -> None:
    z, labels = table(cases)

    def sums(alpha: float) -> np.ndarray:
        found = attended_sums(torch.from_numpy(z.T.copy()), torch.from_numpy(labels), 0.2, alpha)
        return found.numpy()

    for alpha in (0.3, 1.0, 2.0):
        here, less, more = sums(alpha), sums(alpha - 1e-5), sums(alpha + 1e-5)
        assert here[1] == pytest.approx(attended_loss(z, labels, 0.2, alpha)[0], rel=1e-12)
        assert here[2] == pytest.approx((more[1] - less[1]) / 2e-5, rel=1e-6)
        assert here[3] == pytest.approx((more[2] - less[2]) / 2e-5, rel=1e-5)
    assert sums(1e-9)[2] == pytest.approx(here[4], rel=1e-6)
    assert sums(1e4)[2] == pytest.approx(here[5], rel=1e-6)


def test_without_attended_samples_it_is_temperature_scaling(cases: list[Case]) -> None:
    mild = [Case(case.name, np.asarray(case.logits) / 10, case.labels) for case in cases]
    ours, plain = create("ats", 4, threshold=1.0).fit(mild), create("ts", 4).fit(mild)
    assert ours.fit_report_.details["attended"] == 0
    assert float(ours.inverse_temperature) == pytest.approx(float(plain.inverse_temperature), rel=1e-9)


def test_calibrated_logits_keep_their_temperature() -> None:
    """Where every class attends, the loss is proper: of labels drawn from the probabilities, only 1 is found."""
    rng = np.random.default_rng(7)
    true = 2 * rng.normal(size=(3, 400, 300))
    case = Case("a", true, (true + rng.gumbel(size=true.shape)).argmax(axis=0))
    for threshold in (1e-9, 0.01):
        found = create("ats", 3, threshold=threshold).fit([case]).fit_report_
        assert found.details["temperature"] == pytest.approx(1, abs=0.015)
