"""Vector, matrix and Dirichlet scaling against plain L-BFGS on the whole table, and what must hold of any answer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from segcal.calibrators import DirichletCalibration, MatrixScaling, VectorScaling, create, search_dirichlet
from segcal.calibrators.shared.survey import Sampler
from segcal.functional.probability import logits_from_probabilities
from segcal.types import Case, InputError
from support.flat import affine_reference, mean_nll, table
from support.scenes import degenerate, noisy

# both solvers stop where a rounded gradient is below 1e-7 and 1e-9: values agree to 1e-10, numbers to 1e-4
VALUE, NUMBER = 1e-10, 1e-4


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return noisy()


@pytest.mark.parametrize(
    ("method", "penalties"),
    [
        ("vector", None),
        *(("matrix", penalties) for penalties in ((0.01, 0.01), (0.0, 0.0), (3.0, 0.1))),
        *(("dirichlet", penalties) for penalties in ((0.01, 0.01), (0.5, 0.001))),
    ],
)
def test_the_optimum_is_found(cases: list[Case], method: str, penalties: tuple[float, float] | None) -> None:
    z, labels = table(cases)
    x = log_softmax(z, axis=1) if method == "dirichlet" else z
    off_diagonal, bias = penalties or (0.0, 0.0)
    w, b, value = affine_reference(
        x, labels, diagonal=penalties is None, off_diagonal=off_diagonal, bias=bias, sums=method == "dirichlet"
    )
    own = {} if penalties is None else {"off_diagonal_penalty": off_diagonal, "bias_penalty": bias}
    ours = create(method, 4, **own).fit(cases)
    report = ours.fit_report_
    assert report.converged
    assert report.nll_after + report.details["penalty"] == pytest.approx(value, abs=VALUE)
    assert report.nll_before == pytest.approx(mean_nll(z, labels), rel=1e-12)
    assert report.nll_after == pytest.approx(mean_nll(x @ w.T + b, labels), abs=VALUE if penalties is None else 1e-7)
    np.testing.assert_allclose(ours.bias, b, atol=NUMBER if penalties is None else 1e-3)
    probs = ours.predict_proba(torch.from_numpy(z)).numpy()
    np.testing.assert_allclose(probs, softmax(x @ w.T + b, axis=1), atol=NUMBER)


@pytest.mark.parametrize("method", ["vector", "matrix", "dirichlet"])
@pytest.mark.parametrize("pixels", [40, 400])
def test_a_sample_is_only_the_start(cases: list[Case], method: str, pixels: int) -> None:
    """What a small sample says wrongly is put right by the passes over all pixels."""
    whole = create(method, 4).fit(cases).fit_report_
    with mock.patch("segcal.calibrators.affine.Sampler", partial(Sampler, pixels=pixels)):
        found = create(method, 4).fit(cases).fit_report_
    assert found.steps > whole.steps
    assert found.converged
    objective = [report.nll_after + report.details["penalty"] for report in (found, whole)]
    assert objective[0] == pytest.approx(objective[1], abs=VALUE)


@pytest.mark.parametrize("method", ["vector", "matrix"])
def test_threads_do_not_matter(cases: list[Case], method: str, set_threads) -> None:  # type: ignore[no-untyped-def]
    whole = create(method, 4).fit(cases)
    set_threads(1)
    alone = create(method, 4).fit(cases)
    np.testing.assert_allclose(alone.weights, whole.weights, atol=1e-6)
    np.testing.assert_allclose(alone.bias, whole.bias, atol=1e-6)


def test_relabelling_the_classes_relabels_the_answer(cases: list[Case]) -> None:
    order = np.array([2, 0, 3, 1])
    turned = [
        replace(case, logits=np.asarray(case.logits)[order], labels=np.argsort(order)[np.asarray(case.labels)])
        for case in cases
    ]
    ours, theirs = VectorScaling(4).fit(cases), VectorScaling(4).fit(turned)
    np.testing.assert_allclose(theirs.weights, ours.weights[order], atol=1e-5)
    np.testing.assert_allclose(theirs.bias, ours.bias[order], atol=1e-5)


def test_a_curvature_class_by_class_leads_to_the_same_answer(cases: list[Case]) -> None:
    """As it is found where there are very many classes."""
    whole = MatrixScaling(4).fit(cases)
    with mock.patch("segcal.functional.affine._WHOLE", 0):
        other = MatrixScaling(4).fit(cases)
    assert other.fit_report_.converged
    np.testing.assert_allclose(other.weights, whole.weights, atol=NUMBER)


def test_warnings_say_what_is_missing() -> None:
    found = {name: " ".join(VectorScaling(3).fit(cases).fit_report_.warnings) for name, cases in degenerate().items()}
    assert "class 1 is the only one among the labels" in found["one class only"]
    assert "no pixel to fit on is labelled 2" in found["a class never present"]
    assert "every pixel is predicted right" in found["all right"]
    assert "no pixel is predicted right" in found["all wrong"]
    assert "only 2 pixels to fit 6 numbers on" in found["two pixels"]


@pytest.mark.parametrize("size", [1e30, 1e36, 3e38])
@pytest.mark.parametrize("classes", [2, 3])
def test_enormous_logits_have_a_defined_answer(classes: int, size: float) -> None:
    """Their curvature overflows, or is negative by rounding; warnings of numpy are errors here."""
    random = np.random.default_rng(0)
    logits = np.clip(random.normal(size=(classes, 12, 10)) * size, -3.4e38, 3.4e38).astype(np.float32)
    case = Case("a", logits, random.integers(0, classes, (12, 10)))
    for method in ("vector", "matrix"):
        ours = create(method, classes).fit([case])
        assert np.isfinite(ours.fit_report_.nll_after)
        assert ours.predict_proba(torch.from_numpy(logits)[None]).isfinite().all()


def test_a_search_that_stops_early_says_so(cases: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.calibrators.affine._PASSES", 2)
    monkeypatch.setattr("segcal.calibrators.affine.Sampler", partial(Sampler, pixels=40))
    report = create("vector", 4).fit(cases).fit_report_
    assert not report.converged
    assert report.warnings == (f"the search stopped after {report.steps} steps, before it converged",)


def test_the_penalties_of_the_paper_are_the_default() -> None:
    ours = create("dirichlet", num_classes=4)
    assert isinstance(ours, DirichletCalibration)
    assert (ours.off_diagonal_penalty, ours.bias_penalty) == (0.01, 0.01)


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
