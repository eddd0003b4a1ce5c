"""Vector and matrix scaling against plain L-BFGS on the whole table, netcal, and what must hold of any answer."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
from scipy.special import softmax

from segcal.calibrators import MatrixScaling, VectorScaling, create
from segcal.calibrators.shared.survey import Sampler
from segcal.types import Case
from support.flat import affine_reference, mean_nll, table
from support.scenes import degenerate, noisy

# both solvers stop where a rounded gradient is below 1e-7 and 1e-9: values agree to 1e-10, numbers to 1e-4
VALUE, NUMBER = 1e-10, 1e-4


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return noisy()


def test_vector_scaling_is_the_optimum(cases: list[Case]) -> None:
    x, labels = table(cases)
    w, b, value = affine_reference(x, labels, diagonal=True)
    ours = VectorScaling(4).fit(cases)
    report = ours.fit_report_
    assert report.converged
    assert report.nll_after + report.details["penalty"] == pytest.approx(value, abs=VALUE)
    np.testing.assert_allclose(ours.weights.squeeze(1), np.diag(w), atol=NUMBER)
    np.testing.assert_allclose(ours.bias, b, atol=NUMBER)
    assert report.nll_before == pytest.approx(mean_nll(x, labels), rel=1e-12)
    assert report.nll_after == pytest.approx(mean_nll(x @ w.T + b, labels), abs=VALUE)
    assert report.details["scales"] == ours.weights.squeeze(1).tolist()


@pytest.mark.parametrize("penalties", [(0.01, 0.01), (0.0, 0.0), (3.0, 0.1)])
def test_matrix_scaling_is_the_optimum(cases: list[Case], penalties: tuple[float, float]) -> None:
    x, labels = table(cases)
    w, b, value = affine_reference(x, labels, diagonal=False, off_diagonal=penalties[0], bias=penalties[1])
    ours = MatrixScaling(4, off_diagonal_penalty=penalties[0], bias_penalty=penalties[1]).fit(cases)
    report = ours.fit_report_
    assert report.converged
    assert report.nll_after + report.details["penalty"] == pytest.approx(value, abs=VALUE)
    probs = ours.predict_proba(torch.from_numpy(x)).numpy()
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


def test_vector_scaling_agrees_with_netcal(cases: list[Case]) -> None:
    """On log-probabilities, which are what netcal makes of its input; its optimiser stops at about 1e-5."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scaling = pytest.importorskip("netcal.scaling")
        x, labels = table(cases)
        probs = softmax(x, axis=1)
        theirs = scaling.LogisticCalibration(temperature_only=False, method="mle").fit(probs, labels).transform(probs)
    logs = [replace(case, logits=np.log(softmax(np.asarray(case.logits, np.float64), axis=0))) for case in cases]
    ours = VectorScaling(4).fit(logs)
    found = ours.predict_proba(torch.from_numpy(np.log(probs))).numpy()
    assert ours.fit_report_.nll_after <= mean_nll(np.log(theirs), labels) + 1e-9
    np.testing.assert_allclose(found, theirs, atol=1e-4)


@pytest.mark.parametrize("method", ["vector", "matrix"])
def test_corrects_what_no_temperature_can(cases: list[Case], method: str) -> None:
    scaled, ours = (create(name, 4).fit(cases).fit_report_ for name in ("ts", method))
    assert ours.nll_after < scaled.nll_after - 0.02
    assert ours.nll_after <= ours.nll_before


def test_one_scale_recovers_a_known_map() -> None:
    """Logits are the true ones times 2, 1 and 0.5 plus 1, 0 and -1; the true ones are calibrated."""
    rng = np.random.default_rng(5)
    true = 2 * rng.normal(size=(3, 300, 400))
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=0)
    scale, shift = np.array([2.0, 1.0, 0.5]), np.array([1.0, 0.0, -1.0])
    logits = true * scale[:, None, None] + shift[:, None, None]
    ours = VectorScaling(3).fit([Case("a", logits, labels)])
    np.testing.assert_allclose(ours.weights.squeeze(1), 1 / scale, rtol=0.03)
    bias = ours.bias.numpy() - ours.bias.numpy()[1]
    np.testing.assert_allclose(bias, -shift / scale + shift[1] / scale[1], atol=0.03)


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


def test_many_classes() -> None:
    many = noisy(1, classes=12, size=(32, 32))
    report = MatrixScaling(12).fit(many).fit_report_
    x, labels = table(many)
    _, _, value = affine_reference(x, labels, diagonal=False, off_diagonal=0.01, bias=0.01)
    assert report.converged
    assert report.nll_after + report.details["penalty"] == pytest.approx(value, abs=1e-8)


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
