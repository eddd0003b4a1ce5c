"""Dirichlet calibration against plain L-BFGS on the whole table; shifts, zeros and the search for penalties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from segcal.calibrators import DirichletCalibration, search_dirichlet
from segcal.functional.probability import logits_from_probabilities
from segcal.types import Case, InputError
from support.flat import affine_reference, mean_nll, table
from support.scenes import noisy

VALUE, NUMBER = 1e-10, 1e-4  # as in test_vector


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return noisy(seed=2)


@pytest.mark.parametrize("penalties", [(0.01, 0.01), (0.5, 0.001)])
def test_is_the_optimum(cases: list[Case], penalties: tuple[float, float]) -> None:
    z, labels = table(cases)
    x = log_softmax(z, axis=1)
    w, b, value = affine_reference(x, labels, diagonal=False, off_diagonal=penalties[0], bias=penalties[1], sums=True)
    ours = DirichletCalibration(4, off_diagonal_penalty=penalties[0], bias_penalty=penalties[1]).fit(cases)
    report = ours.fit_report_
    assert report.converged
    assert report.nll_after + report.details["penalty"] == pytest.approx(value, abs=VALUE)
    probs = ours.predict_proba(torch.from_numpy(z)).numpy()
    np.testing.assert_allclose(probs, softmax(x @ w.T + b, axis=1), atol=NUMBER)
    assert report.nll_after == pytest.approx(mean_nll(x @ w.T + b, labels), abs=1e-7)
    assert report.nll_after <= report.nll_before


def test_penalties_are_plain_sums(cases: list[Case]) -> None:
    """As in the cited code: no division by the number of off-diagonal weights or biases."""
    ours = DirichletCalibration(4, off_diagonal_penalty=0.3, bias_penalty=0.2).fit(cases)
    weights, bias = ours.weights.numpy(), ours.bias.numpy()
    others = weights - np.diag(np.diag(weights))
    anchor = 1e-7 * (((weights - np.eye(4)) ** 2).sum() + (bias**2).sum())
    expected = 0.3 * (others**2).sum() + 0.2 * (bias**2).sum() + anchor
    assert ours.fit_report_.details["penalty"] == pytest.approx(expected, rel=1e-9)


def test_probabilities_of_zero_count_as_the_smallest_float32(cases: list[Case]) -> None:
    """Whether they come as logits far apart or as numbers."""
    z, _ = table(cases)
    hard = torch.from_numpy(np.where(z == z.max(axis=1, keepdims=True), 500.0, -500.0)).float()
    ours = DirichletCalibration(4).fit(cases)
    from_logits, from_numbers = ours(hard), ours(logits_from_probabilities(torch.softmax(hard, dim=1)))
    assert from_logits.isfinite().all()
    np.testing.assert_allclose(from_logits, from_numbers, rtol=1e-5)
    x = np.where(z == z.max(axis=1, keepdims=True), 0.0, np.log(np.finfo(np.float32).tiny))
    np.testing.assert_allclose(from_logits, x @ ours.weights.numpy().T + ours.bias.numpy(), rtol=1e-5, atol=1e-4)
    certain = [replace(case, logits=1000 * np.asarray(case.logits)) for case in cases]
    assert np.isfinite(DirichletCalibration(4).fit(certain).fit_report_.nll_after)


def test_search_takes_the_penalties_of_least_validation_nll(cases: list[Case]) -> None:
    fitting, validation = cases[:1], cases[1:]
    grid = (0.0001, 0.01, 100.0)
    best = search_dirichlet(fitting, validation, 4, off_diagonal_penalties=grid, bias_penalties=grid[:2])
    search = best.fit_report_.details["search"]
    assert len(search) == 6
    z, labels = table(validation)
    for tried in search:
        penalties = {name: tried[name] for name in ("off_diagonal_penalty", "bias_penalty")}
        own = DirichletCalibration(4, **penalties).fit(fitting)
        assert tried["validation_nll"] == pytest.approx(mean_nll(own(torch.from_numpy(z)).numpy(), labels), abs=1e-9)
    least = min(search, key=lambda tried: tried["validation_nll"])
    assert best.off_diagonal_penalty == least["off_diagonal_penalty"]
    assert best.bias_penalty == least["bias_penalty"]
    assert best.mean_nll(validation) == least["validation_nll"]
    assert "diagonal of the matrix: " in str(best.fit_report_)


def test_search_refuses_an_empty_grid(cases: list[Case]) -> None:
    with pytest.raises(InputError, match="at least one off_diagonal_penalty"):
        search_dirichlet(cases, cases, 4, off_diagonal_penalties=())
    ours = DirichletCalibration(4, ignore_index=9).fit(cases)
    with pytest.raises(InputError, match="no labelled pixel to measure"):
        ours.mean_nll([replace(cases[0], labels=np.full((30, 24), 9))])
