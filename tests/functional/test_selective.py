"""Risk against coverage, and the area under it, against a loop over every prediction."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segcal.evidence import Histogram
from segcal.evidence.statistic import empty_cells
from segcal.functional import counting
from segcal.functional.selective import (
    Blocks,
    aurc,
    aurc_bounds,
    blocks_of,
    blocks_of_cells,
    excess_aurc,
    risk_coverage,
)


def slow_aurc(losses: np.ndarray) -> float:
    """The mean risk of the first 1, 2, ..., N losses, which are in order of the confidence."""
    return float(np.mean([losses[: k + 1].mean() for k in range(len(losses))]))


def draw(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    confidence = 1 - random.beta(0.5, 1.0, count) / 2
    return confidence, random.random(count) < confidence**3


def cells_of(confidence: np.ndarray, right: np.ndarray) -> Histogram:
    """The fine histogram of pixels that are all predicted as class 0."""
    table = empty_cells(2)
    predicted = torch.zeros(confidence.size, dtype=torch.int32)
    labels = torch.from_numpy(np.where(right, 0, 1))
    counting.count_cells(torch.arange(confidence.size), torch.from_numpy(confidence), predicted, labels, *table)
    return table


def test_by_hand() -> None:
    """Confidences .9, .8, .8, .6 of which one .8 and the .6 are wrong."""
    blocks = blocks_of(np.array([0.8, 0.9, 0.6, 0.8]), np.array([1.0, 0, 1, 0]))
    assert blocks.number.tolist() == [1, 2, 1]
    assert blocks.loss.tolist() == [0, 1, 1]
    # risks 0; 1/4 on average (0 or 1/2 of two); 1/3; 1/2
    assert aurc(blocks) == pytest.approx((0 + 1 / 4 + 1 / 3 + 1 / 2) / 4)
    assert aurc_bounds(blocks) == pytest.approx(((0 + 0 + 1 / 3 + 1 / 2) / 4, (0 + 1 / 2 + 1 / 3 + 1 / 2) / 4))
    assert excess_aurc(blocks) == pytest.approx(aurc(blocks) - (0 + 0 + 1 / 3 + 1 / 2) / 4)
    risk, confidence = risk_coverage(blocks, np.array([0.25, 0.5, 1.0]))
    assert risk.tolist() == pytest.approx([0, 1 / 4, 1 / 2])
    assert confidence.tolist() == [0.9, 0.8, 0.6]


@given(st.integers(0, 10_000), st.integers(1, 200))
def test_area_is_the_mean_over_random_orders_of_ties(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    confidence, loss = random.integers(0, 4, count) / 4, random.random(count)
    blocks = blocks_of(confidence, loss)
    if len(np.unique(confidence)) == count:
        assert aurc(blocks) == pytest.approx(slow_aurc(loss[np.argsort(-confidence)]))
    else:
        tied = np.empty(count)  # each tied prediction has the mean loss of its block, in expectation
        for value in np.unique(confidence):
            tied[confidence == value] = loss[confidence == value].mean()
        assert aurc(blocks) == pytest.approx(slow_aurc(tied[np.argsort(-confidence, kind="stable")]))


def test_fine_histogram_bounds_the_exact_area(rng: np.random.Generator) -> None:
    confidence, right = draw(rng, 3000)
    blocks = blocks_of_cells(cells_of(confidence, right))
    exact = slow_aurc(1.0 - right[np.argsort(-confidence, kind="stable")])
    low, high = aurc_bounds(blocks)
    assert low <= exact <= high
    assert low <= aurc(blocks) <= high
    assert high - low < 1e-2 * exact
    assert aurc(blocks) == pytest.approx(exact, rel=5e-3)


def test_a_better_order_has_less_area_and_a_perfect_one_no_excess(rng: np.random.Generator) -> None:
    confidence, right = draw(rng, 2000)
    loss = 1.0 - right
    assert aurc(blocks_of(confidence, loss)) < aurc(blocks_of(rng.random(2000), loss))
    assert excess_aurc(blocks_of(1 - loss, loss)) == pytest.approx(0, abs=1e-12)
    assert excess_aurc(blocks_of(confidence, loss)) > 0


def test_many_pixels_lose_no_digits() -> None:
    """Billions of pixels in equal blocks of equal risk: every risk is 1/8, and so is the area."""
    count = np.full(1000, 8_000_000, np.int64)
    assert aurc(Blocks(np.linspace(1, 0, 1000), count, count / 8)) == pytest.approx(1 / 8, abs=1e-12)


def test_nothing() -> None:
    blocks = blocks_of_cells(empty_cells(2))
    assert np.isnan(aurc(blocks))
    assert np.isnan(risk_coverage(blocks, np.array([0.5]))[0]).all()
