"""Conformal risk control against loops, by hand, and its guarantee in simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segcal.functional.conformal import (
    conformal_radius,
    controlled_index,
    fewest_units,
    group_means,
    left_out_indices,
    left_out_radii,
)


def slow_index(losses: np.ndarray, alpha: float) -> int:
    """The definition, one index at a time."""
    best = -1
    for k in range(losses.shape[1]):
        bound = (sum(float(unit[k]) for unit in losses) + 1) / (len(losses) + 1)
        if bound <= alpha + 1e-12:
            best = k
    return best


def slow_radius(scores: np.ndarray, alpha: float) -> float:
    """The score of rank ceil((n + 1) (1 - alpha))."""
    rank = int(np.ceil((len(scores) + 1) * (1 - alpha) - 1e-9))
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else np.inf


def increasing(random: np.random.Generator, units: int, steps: int) -> np.ndarray:
    return np.sort(random.random((units, steps)) ** 2, axis=1)


@given(st.integers(0, 10_000), st.integers(1, 30), st.sampled_from([0.05, 0.1, 0.25, 0.5]))
def test_index_is_that_of_the_definition(seed: int, units: int, alpha: float) -> None:
    losses = increasing(np.random.default_rng(seed), units, 12)
    assert controlled_index(losses, alpha) == slow_index(losses, alpha)
    for k, found in enumerate(left_out_indices(losses, alpha)):
        assert found == slow_index(np.delete(losses, k, axis=0), alpha)


@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from([0.1, 0.2, 0.5]))
def test_radius_is_the_rank_of_split_conformal(seed: int, images: int, alpha: float) -> None:
    scores = np.random.default_rng(seed).normal(size=images).round(1)  # with ties
    alone = np.arange(images)
    assert conformal_radius(scores, alone, alpha) == slow_radius(scores, alpha)
    for k, found in enumerate(left_out_radii(scores, alone, alpha)):
        assert found == slow_radius(np.delete(scores, k), alpha)


def test_by_hand() -> None:
    """Nine images; the bound at 0.3 allows losses that sum to 0.3 * 10 - 1 = 2."""
    losses = np.array([[0, 0.0, 0.25, 1]] * 8 + [[0, 0.5, 0.5, 1]])
    assert controlled_index(losses, 0.3) == 1  # sums are 0, 0.5, 2.5 and 9
    assert controlled_index(losses, 0.35) == 2  # 0.35 * 10 - 1 = 2.5, reached exactly
    assert controlled_index(losses[:2], 0.3) == -1
    assert [fewest_units(alpha) for alpha in (0.5, 0.1, 0.05, 0.01, 0.3)] == [1, 9, 19, 99, 3]


def test_groups_count_once(rng: np.random.Generator) -> None:
    """Copies of an image inside its group change nothing; as images of their own they would."""
    losses = increasing(rng, 12, 50)
    clusters = np.arange(12)
    copied = np.concatenate([losses, losses[:1].repeat(30, axis=0)])
    same = np.concatenate([clusters, np.zeros(30, np.int64)])
    np.testing.assert_allclose(group_means(copied, same), losses)
    assert controlled_index(group_means(copied, same), 0.2) == controlled_index(losses, 0.2)
    scores = rng.normal(size=12)
    copies = np.concatenate([scores, scores[:1].repeat(30)])
    assert conformal_radius(copies, same, 0.2) == conformal_radius(scores, clusters, 0.2)
    assert conformal_radius(copies, np.arange(42), 0.2) != conformal_radius(scores, clusters, 0.2)


@pytest.mark.parametrize("alpha", [0.1, 0.2])
@pytest.mark.parametrize("images", [9, 25])
def test_the_guarantee_holds_over_many_data_sets(rng: np.random.Generator, alpha: float, images: int) -> None:
    """The mean loss on a new image stays below alpha, and near it, since the bound is nearly tight."""
    grid = np.linspace(0, 1, 200)
    found, plain = [], []
    for _ in range(1500):
        level = rng.beta(2, 2, size=(images + 1, 1))  # how hard each image is
        losses = np.clip(grid - level, 0, None) / (1 - level)
        chosen = max(0, controlled_index(losses[:-1], alpha))
        found.append(losses[-1, chosen])
        within = np.flatnonzero(losses[:-1].mean(axis=0) <= alpha)
        plain.append(losses[-1, within[-1]])
    error = np.std(found) / np.sqrt(len(found))
    assert np.mean(found) <= alpha + 3 * error
    assert np.mean(found) > alpha - 1.5 / (images + 1) - 3 * error
    assert np.mean(plain) > np.mean(found)


def test_intervals_cover_new_groups(rng: np.random.Generator) -> None:
    """Images of a group are alike; only the rule that knows the groups covers images of a new one."""
    inside = []
    for _ in range(1000):
        spread = rng.lognormal(0, 1, size=(12, 1))
        scores = np.abs(spread * rng.normal(size=(12, 5)))
        radius = conformal_radius(scores[:-1].ravel(), np.repeat(np.arange(11), 5), 0.2)
        inside.append((scores[-1] <= radius).mean())
    assert np.mean(inside) >= 0.8 - 3 * np.std(inside) / np.sqrt(len(inside))
