"""Temperatures: exact optima against scipy, scikit-learn and slow loops, for all pixels, attended ones and bins."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

import segcal
from segcal.calibrators import AttendedTemperatureScaling, BinwiseTemperatureScaling, TemperatureScaling, create
from segcal.calibrators.binwise import equal_shares
from segcal.functional.scaling import attended_sums
from segcal.types import Case
from support import references
from support.flat import mean_nll, table
from support.scenes import noisy, simulated
from support.slow_evaluation import IGNORED, make_cases, slow_regions


def scenes(count: int, temperature: float, size: tuple[int, ...] = (96, 96), seed: int = 0) -> list[Case]:
    return simulated(count, size=size, variation="global", temperatures=(temperature, temperature), seed=seed)


def fitted(cases: Sequence[Case], classes: int = 5) -> TemperatureScaling:
    calibrator = segcal.create("ts", num_classes=classes).fit(cases)
    assert isinstance(calibrator, TemperatureScaling)
    return calibrator


@pytest.mark.parametrize("dims", [2, 3])
def test_the_loss_is_over_all(dims: int) -> None:
    """The optimum is that of the pixels within labels and of Boundary, and not that of every labelled pixel."""
    cases, optima = make_cases(dims), list[float]()
    for masks in ([slow_regions(case)["all"] for case in cases], [np.asarray(c.labels) != IGNORED for c in cases]):
        z = np.concatenate([np.asarray(c.logits)[:, mask] for c, mask in zip(cases, masks, strict=True)], axis=1)
        labels = np.concatenate([np.asarray(c.labels)[mask] for c, mask in zip(cases, masks, strict=True)])
        optima.append(references.optimal_inverse_temperature(z.astype(np.float64), labels.astype(int)))
    ours = TemperatureScaling(3, background=0, ignore_index=IGNORED).fit(cases)
    assert float(ours.inverse_temperature) == pytest.approx(optima[0], rel=1e-5)
    assert optima[0] != pytest.approx(optima[1], rel=1e-2)


def test_limits_of_the_temperature(rng: np.random.Generator) -> None:
    """1 changes nothing, a larger one lowers the confidence towards 1 / L, a smaller one raises it towards 0 or 1."""
    logits = torch.from_numpy(rng.normal(size=(1, 4, 8, 9)))
    scaling = TemperatureScaling(4, bounds=(1e-30, 1e30))
    scaling.fitted.fill_(True)
    probs = dict[float, torch.Tensor]()
    for temperature in (1e-30, 0.5, 1.0, 2.0, 1e30):
        scaling.inverse_temperature.fill_(1 / temperature)
        probs[temperature] = scaling.predict_proba(logits)
        assert torch.equal(probs[temperature].argmax(1), logits.argmax(1)) or temperature == 1e30
    torch.testing.assert_close(probs[1.0], torch.softmax(logits, dim=1))
    torch.testing.assert_close(probs[1e30], torch.full_like(logits, 1 / 4))
    assert torch.equal(probs[1e-30], torch.nn.functional.one_hot(logits.argmax(1), 4).movedim(-1, 1).double())
    confidence = [found.amax(1) for found in probs.values()]
    assert all((lower < higher).all() for lower, higher in zip(confidence[1:], confidence[:-1], strict=True))


@pytest.mark.parametrize(("temperature", "size"), [(0.4, (224, 224)), (1.0, (224, 224)), (2.5, (24, 48, 48))])
def test_recovers_a_known_temperature(temperature: float, size: tuple[int, ...]) -> None:
    report = fitted(scenes(6, temperature, size)).fit_report_
    assert report.details["temperature"] == pytest.approx(temperature, rel=0.005)
    assert report.converged
    assert report.warnings == ()
    assert report.steps <= 8


@pytest.fixture(scope="module")
def sample() -> list[Case]:
    return scenes(3, 1.7, (40, 32))


def test_agrees_with_scipy(sample: list[Case]) -> None:
    logits, labels = table(sample)
    found = minimize_scalar(
        lambda a: mean_nll(a * logits, labels), bounds=(0.01, 10), method="bounded", options={"xatol": 1e-12}
    )
    calibrator = fitted(sample)
    # a minimum is known to the root of the precision at best; the root of the slope to all digits
    assert float(calibrator.inverse_temperature) == pytest.approx(found.x, rel=1e-7)
    assert calibrator.fit_report_.nll_before == pytest.approx(mean_nll(logits, labels), rel=1e-12)
    assert calibrator.fit_report_.nll_after == pytest.approx(found.fun, rel=1e-12)


def test_agrees_with_scikit_learn(sample: list[Case]) -> None:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    logits, labels = table(sample)

    class Network(ClassifierMixin, BaseEstimator):
        """Its scores are its input."""

        def __init__(self) -> None:
            self.classes_ = np.arange(logits.shape[1])

        def fit(self, x: np.ndarray, y: np.ndarray) -> Network:
            return self

        def decision_function(self, x: np.ndarray) -> np.ndarray:
            return x

        def predict(self, x: np.ndarray) -> np.ndarray:
            return x.argmax(axis=1)

    peer = CalibratedClassifierCV(FrozenEstimator(Network()), method="temperature").fit(logits, labels)
    ours = fitted(sample)
    (scaling,) = peer.calibrated_classifiers_[0].calibrators
    assert ours.fit_report_.details["temperature"] == pytest.approx(1 / float(scaling.beta_), rel=1e-4)
    probs = ours.predict_proba(torch.as_tensor(logits)).numpy()
    np.testing.assert_allclose(probs, peer.predict_proba(logits), atol=1e-5)


def test_likelihood_equals_entropy_after_the_fit(sample: list[Case]) -> None:
    """Theorem 4; before the fit they are far apart."""
    logits, labels = table(sample)
    scaled = logits * float(fitted(sample).inverse_temperature)

    def entropy(z: np.ndarray) -> float:
        return float(-(softmax(z, axis=1) * log_softmax(z, axis=1)).sum(axis=1).mean())

    assert mean_nll(scaled, labels) == pytest.approx(entropy(scaled), abs=1e-9)
    assert abs(mean_nll(logits, labels) - entropy(logits)) > 0.05


def test_worked_by_hand() -> None:
    """Two classes one apart, three pixels of four right: softmax(1/T) = 3/4, so 1/T = log 3."""
    logits = np.zeros((2, 1, 4), np.float32)
    logits[1] = 1.0
    calibrator = fitted([Case("a", logits, np.array([[1, 1, 1, 0]]))], classes=2)
    assert float(calibrator.inverse_temperature) == pytest.approx(np.log(3), rel=1e-12)
    assert calibrator.fit_report_.nll_after == pytest.approx(-(3 * np.log(3 / 4) + np.log(1 / 4)) / 4, rel=1e-12)


def separable() -> list[Case]:
    return [Case(case.name, case.logits, np.asarray(case.logits).argmax(0)) for case in scenes(2, 1.0, (12, 10))]


def inverted() -> list[Case]:
    return [Case(case.name, case.logits, np.asarray(case.logits).argmin(0)) for case in scenes(2, 1.0, (12, 10))]


def flat() -> list[Case]:
    return [Case("flat", np.ones((5, 3, 3), np.float32), np.zeros((3, 3), int))]


@pytest.mark.parametrize(
    ("cases", "inverse", "used", "words"),
    [
        (separable, np.inf, 0.05, "every pixel is predicted right.*0.05 is used"),
        (inverted, 0.0, 100.0, "no better than chance.*100.0 is used"),
        (flat, 0.0, 100.0, "no better than chance.*100.0 is used"),
    ],
)
def test_bounds_where_there_is_no_optimum(cases, inverse: float, used: float, words: str) -> None:
    calibrator = fitted(cases())
    report = calibrator.fit_report_
    logits = torch.as_tensor(np.asarray(cases()[0].logits))[None]
    assert float(calibrator.inverse_temperature) == inverse
    assert report.details["temperature"] == used
    assert report.converged
    assert len(report.warnings) == 1
    np.testing.assert_array_equal(calibrator.temperature(logits), np.full((1, 1, *logits.shape[2:]), np.float32(used)))
    assert re.search(words, report.warnings[0])
    assert np.isfinite(report.nll_after)
    torch.testing.assert_close(calibrator(logits), logits / used)


def test_own_bounds_are_used_and_told(sample: list[Case]) -> None:
    calibrator = segcal.create("ts", num_classes=5, bounds=(0.5, 1.25)).fit(sample)
    (warning,) = calibrator.fit_report_.warnings
    assert "out of bounds, 1.25 is used" in warning
    assert calibrator.fit_report_.details["temperature"] == 1.25
    logits, labels = table(sample)
    assert calibrator.fit_report_.nll_after == pytest.approx(mean_nll(logits / 1.25, labels), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_logits_of_any_precision_are_fitted_as_they_are(sample: list[Case], dtype: torch.dtype) -> None:
    """Half precision is widened, never computed in: the optimum is that of the rounded values in float64."""
    rounded = [Case(case.name, torch.as_tensor(case.logits).to(dtype), case.labels) for case in sample]
    wide = [Case(case.name, case.logits.double(), case.labels) for case in rounded]
    assert float(fitted(rounded).inverse_temperature) == pytest.approx(
        float(fitted(wide).inverse_temperature), rel=1e-12
    )


def test_the_temperature_follows_every_change_of_the_learned_value(sample: list[Case]) -> None:
    ts, logits = fitted(sample), torch.randn(1, 5, 4, 4)
    first = ts.predict_proba(logits)
    learned = float(ts.inverse_temperature)
    ts.inverse_temperature.data.fill_(0.25)  # which PyTorch does not count as a change
    assert torch.allclose(ts.predict_proba(logits), torch.softmax(logits / 4, dim=1), atol=1e-6)
    ts.load_state_dict({**ts.state_dict(), "inverse_temperature": torch.tensor(learned).double()})
    assert torch.equal(ts.predict_proba(logits), first)


def test_threads_of_different_precision_do_not_disturb_each_other(sample: list[Case]) -> None:
    ts, logits = fitted(sample), torch.randn(1, 5, 4, 4)
    dtypes = [torch.float32, torch.float64] * 2

    def found(dtype: torch.dtype) -> set[torch.dtype]:
        return {ts.temperature(logits.to(dtype)).dtype for _ in range(300)}

    with ThreadPoolExecutor(len(dtypes)) as pool:
        assert list(pool.map(found, dtypes)) == [{dtype} for dtype in dtypes]


def attended_loss(z: np.ndarray, labels: np.ndarray, threshold: float, alpha: float) -> tuple[float, int]:
    """Summed over classes and their samples, own and borrowed; and how many were borrowed."""
    raw, scaled = references.softmax(z.T), references.softmax(alpha * z.T)
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
def sharp() -> list[Case]:
    return [Case(case.name, 1.5 * np.asarray(case.logits), case.labels) for case in noisy(2, size=(12, 10), seed=4)]


@pytest.mark.parametrize("threshold", [0.01, 0.1, 0.6])
def test_attended_loss_is_least(sharp: list[Case], threshold: float) -> None:
    z, labels = table(sharp)
    found = minimize_scalar(
        lambda alpha: attended_loss(z, labels, threshold, alpha)[0],
        bounds=(0.05, 5), method="bounded", options={"xatol": 1e-9},
    )  # fmt: skip
    ours = AttendedTemperatureScaling(4, threshold=threshold).fit(sharp)
    # a minimum is known to the root of the precision at best
    assert float(ours.inverse_temperature) == pytest.approx(found.x, rel=1e-6)
    assert ours.fit_report_.details["attended"] == attended_loss(z, labels, threshold, 1.0)[1] > 0
    assert ours.fit_report_.converged
    temperature = ours.fit_report_.details["temperature"]
    assert ours.fit_report_.nll_after == pytest.approx(mean_nll(z / temperature, labels), rel=1e-12)
    assert ours.fit_report_.nll_before == pytest.approx(mean_nll(z, labels), rel=1e-12)


def test_derivatives_are_those_of_the_loss(sharp: list[Case]) -> None:
    z, labels = table(sharp)

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


def test_without_attended_samples_it_is_temperature_scaling(sharp: list[Case]) -> None:
    mild = [Case(case.name, np.asarray(case.logits) / 10, case.labels) for case in sharp]
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


@pytest.fixture(scope="module")
def overconfident() -> list[Case]:
    return [Case(case.name, 2.5 * np.asarray(case.logits), case.labels) for case in noisy(4, seed=3)]


def test_each_bin_has_its_own_optimum(overconfident: list[Case]) -> None:
    z, labels = table(overconfident)
    ours = BinwiseTemperatureScaling(4, bins=6).fit(overconfident)
    report = ours.fit_report_
    confidence = softmax(z, axis=1).max(axis=1)
    bins = np.array([sum(value > edge for edge in ours.edges.tolist()) for value in confidence])
    assert report.details["pixels"] == np.bincount(bins, minlength=6).tolist()
    total = 0.0
    for r in range(6):
        own, truth = z[bins == r], labels[bins == r]
        found = minimize_scalar(
            lambda t, own=own, truth=truth: mean_nll(own / t, truth), bounds=(0.05, 100), method="bounded",
            options={"xatol": 1e-10},
        )  # fmt: skip
        # a minimum is known to the root of the precision at best
        assert report.details["temperatures"][r] == pytest.approx(found.x, rel=1e-6)
        total += found.fun * len(own)
    assert report.nll_after == pytest.approx(total / len(z), abs=1e-12)
    assert report.nll_after <= report.nll_before
    assert report.converged
    temperature = ours.temperature(torch.from_numpy(z)).squeeze(1).numpy()
    np.testing.assert_allclose(temperature, np.array(report.details["temperatures"])[bins], rtol=1e-12)


def test_bins_share_the_pixels_equally(overconfident: list[Case]) -> None:
    """Except the last, which holds what is above 0.999; a cell of the histogram holds few."""
    z, _ = table(overconfident)
    confidence = softmax(z, axis=1).max(axis=1)
    report = BinwiseTemperatureScaling(4, bins=5).fit(overconfident).fit_report_
    assert report.details["edges"][-1] == 0.999
    assert report.details["pixels"][-1] == (confidence > 0.999).sum() > 0
    share = (confidence <= 0.999).sum() / 4
    assert np.abs(np.array(report.details["pixels"][:-1]) - share).max() <= 3
    quantiles = np.quantile(confidence[confidence <= 0.999], [0.25, 0.5, 0.75])
    np.testing.assert_allclose(report.details["edges"][:-1], quantiles, atol=0.002)


def test_shares_by_hand() -> None:
    histogram = torch.tensor([4, 0, 0, 4, 4, 0, 0, 0])
    torch.testing.assert_close(equal_shares(histogram, 4), torch.tensor([1 / 8, 4 / 8, 0.999]).double())
    assert equal_shares(torch.zeros(8, dtype=torch.int64), 3).tolist() == [0.999, 0.999]


def test_bins_without_a_pixel_leave_pixels_alone() -> None:
    case = Case("sure", np.array([[[9.0, 9.0, 9.0]], [[0.0, 0.0, 0.0]]]), np.array([[0, 0, 1]]))
    ours = create("bts", 2, bins=3).fit([case])
    assert ours.fit_report_.details["pixels"] == [0, 0, 3]
    assert ours.fit_report_.details["temperatures"][:2] == [1.0, 1.0]
    assert any("bins without a pixel, where nothing is changed: 0, 1" in text for text in ours.fit_report_.warnings)
    unsure = torch.tensor([[[0.5]], [[0.0]]])[None]
    assert torch.equal(ours(unsure), unsure)
