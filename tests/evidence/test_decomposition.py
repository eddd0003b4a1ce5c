"""Debiased errors and the parts of scores against loops, by hand, and on networks whose calibration is known."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from segcal.evidence import Evidence, Histogram, describe, read, readings
from segcal.evidence.readings import FURTHER, debiased_ece, debiased_rms, further_readings

NORMAL = NormalDist()


def histogram(bins: list[tuple[int, int, float]]) -> Histogram:
    count, hit, confidence = zip(*bins, strict=True)
    return Histogram(torch.tensor([count]), torch.tensor([hit]), torch.tensor([confidence], dtype=torch.float64))


BINS = st.integers(0, 50).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, n), st.floats(0, 1).map(lambda share: share * n))
)
TABLES = st.lists(BINS, min_size=1, max_size=5).filter(lambda bins: any(count for count, _, _ in bins))


@given(TABLES)
@example([(1, 1, 0.25), (2, 1, 0.9)])  # one pixel has no variance
def test_debiased_errors_against_loops(bins: list[tuple[int, int, float]]) -> None:
    total = sum(count for count, _, _ in bins)
    absolute = squared = 0.0
    for count, hit, confidence in bins:
        if count:
            gap, share = abs(hit - confidence) / count, hit / count
            variance = share * (1 - share) / (count - 1) if count > 1 else 0.0
            squared += count / total * (gap**2 - variance)
            if variance:
                spread = math.sqrt(variance)
                ratio = gap / spread
                gap = gap * (2 * NORMAL.cdf(ratio) - 1) - 2 * spread * NORMAL.pdf(ratio)
            absolute += count / total * gap
    assert float(debiased_ece(histogram(bins))) == pytest.approx(absolute, abs=1e-12)
    assert float(debiased_rms(histogram(bins))) ** 2 == pytest.approx(max(squared, 0.0), abs=1e-12)


def simulate(random: np.random.Generator, shift: float, many: int = 400, n: int = 200) -> Histogram:
    """Ten bins of `n` pixels with accuracies `shift` below their confidence, drawn `many` times."""
    confidence = np.tile(np.linspace(0.5, 0.9, 10), (many, 1, 1))
    hit = random.binomial(n, confidence - shift)
    count = np.full(hit.shape, n)
    return Histogram(*(torch.from_numpy(values) for values in (count, hit, confidence * n)))


def test_debiased_ece_of_a_calibrated_network_is_zero_on_average(rng: np.random.Generator) -> None:
    table = simulate(rng, 0.0)
    raw, debiased = readings.ece(table), debiased_ece(table)
    assert raw.mean() > 0.02
    assert abs(debiased.mean()) < 4 * float(debiased.std()) / math.sqrt(400) + 1e-4
    assert abs(debiased.mean()) < raw.mean() / 20


@pytest.mark.parametrize("shift", [0.15, 0.3])
def test_debiased_errors_keep_gaps_that_are_real(rng: np.random.Generator, shift: float) -> None:
    table = simulate(rng, shift)
    assert float(debiased_ece(table).mean()) == pytest.approx(shift, abs=2.5e-3)
    assert float(debiased_rms(table).mean()) == pytest.approx(shift, abs=2.5e-3)


def evidence_of(logits: np.ndarray, labels: np.ndarray) -> Evidence:
    pixels = describe(torch.from_numpy(logits), torch.from_numpy(labels))
    return Evidence.of(pixels, [torch.arange(labels.size)], num_classes=len(logits))


def test_parts_add_up_to_the_scores(rng: np.random.Generator) -> None:
    logits, labels = rng.normal(size=(4, 500)), rng.integers(0, 4, 500)
    evidence = evidence_of(logits, labels)
    found, scores = further_readings(evidence), read(evidence)
    assert set(found) == set(FURTHER)
    share = np.bincount(labels, minlength=4) / 500
    assert float(found["nll-uncertainty"]) == pytest.approx(-(share * np.log(share)).sum())
    assert float(found["brier-uncertainty"]) == pytest.approx(np.mean(((np.eye(4)[labels] - share) ** 2).sum(axis=1)))
    for score in ("nll", "brier"):
        calibration, refinement, resolution, uncertainty = (
            float(found[f"{score}-{part}"]) for part in ("calibration", "refinement", "resolution", "uncertainty")
        )
        assert calibration + refinement == pytest.approx(float(scores[score]))
        assert refinement == pytest.approx(uncertainty - resolution)
        assert calibration >= 0


def test_calibration_parts_against_loops(rng: np.random.Generator) -> None:
    logits, labels = 2 * rng.normal(size=(3, 300)), rng.integers(0, 3, 300)
    evidence = evidence_of(logits, labels)
    nll = brier = 0.0
    for count, hit, total in zip(*(field[0].sum(dim=0).tolist() for field in evidence.top), strict=True):
        if count:
            right, sure = hit / count, total / count
            brier += count / 300 * (right - sure) ** 2
            nll += count / 300 * sum(a * math.log(a / b) for a, b in ((right, sure), (1 - right, 1 - sure)) if a)
    found = further_readings(evidence)
    assert float(found["nll-calibration"]) == pytest.approx(nll)
    assert float(found["brier-calibration"]) == pytest.approx(brier)


def test_class_frequencies_resolve_nothing() -> None:
    """A network that always answers with the class frequencies is calibrated, and knows nothing beyond them."""
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    logits = np.tile(np.log([[0.5], [0.3], [0.2]]), (1, 100))
    found = further_readings(evidence_of(logits, labels))
    for score in ("nll", "brier"):
        assert float(found[f"{score}-calibration"]) == pytest.approx(0, abs=1e-12)
        assert float(found[f"{score}-resolution"]) == pytest.approx(0, abs=1e-12)


def test_calibration_is_at_most_the_calibration_loss_of_all_probabilities(rng: np.random.Generator) -> None:
    """Labels drawn from known probabilities: the loss of the shown ones against those is what calibration bounds."""
    truth = rng.normal(size=(3, 40_000)) * 1.5
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=0)
    shown = 2.5 * truth
    p, q = (np.exp(z) / np.exp(z).sum(axis=0) for z in (truth, shown))
    found = further_readings(evidence_of(shown, labels))
    nll, brier = (p * np.log(p / q)).sum(axis=0).mean(), ((p - q) ** 2).sum(axis=0).mean()
    assert 0.3 * nll < float(found["nll-calibration"]) <= nll
    assert 0.3 * brier < float(found["brier-calibration"]) <= brier


def test_certain_and_wrong_stays_finite() -> None:
    found = further_readings(evidence_of(np.array([[1e4, 1e4], [0.0, 0.0]]), np.array([0, 1])))
    assert all(math.isfinite(value) for value in found.values())


def test_regions_in_several_axes_are_read_one_by_one(rng: np.random.Generator) -> None:
    """Of 2 x 3 regions, each reading is that of the region alone."""
    parts = [evidence_of(rng.normal(size=(4, 60)), rng.integers(0, 4, 60)) for _ in range(6)]

    def stacked(values: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(values).unflatten(0, (2, 3))

    tensors = [part.tensors() for part in parts]
    together = further_readings(
        Evidence.from_tensors({name: stacked([own[name] for own in tensors]) for name in tensors[0]})
    )
    for k, part in enumerate(parts):
        for name, value in further_readings(part).items():
            torch.testing.assert_close(together[name][divmod(k, 3)], value[0])
