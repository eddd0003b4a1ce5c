"""Bin-wise temperature scaling against one scalar search for each bin."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import softmax

from segcal.calibrators import BinwiseTemperatureScaling, create
from segcal.calibrators.temperature import equal_shares
from segcal.types import Case
from support.flat import mean_nll, table
from support.scenes import noisy


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [Case(case.name, 2.5 * np.asarray(case.logits), case.labels) for case in noisy(4, seed=3)]


def test_each_bin_has_its_own_optimum(cases: list[Case]) -> None:
    z, labels = table(cases)
    ours = BinwiseTemperatureScaling(4, bins=6).fit(cases)
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


def test_bins_share_the_pixels_equally(cases: list[Case]) -> None:
    """Except the last, which holds what is above 0.999; a cell of the histogram holds few."""
    z, _ = table(cases)
    confidence = softmax(z, axis=1).max(axis=1)
    report = BinwiseTemperatureScaling(4, bins=5).fit(cases).fit_report_
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
