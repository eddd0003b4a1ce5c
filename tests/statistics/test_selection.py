"""The rule of one standard error against a slow reference, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segcal.statistics import paired_difference, simplest_good


def slow_difference(one: list[float], other: list[float], sizes: list[float]) -> tuple[float, float]:
    """Mean difference and its standard error, group by group."""
    total = math.fsum(sizes)
    mean = math.fsum(a - b for a, b in zip(one, other, strict=True)) / total
    squares = math.fsum((a - b - mean * n) ** 2 for a, b, n in zip(one, other, sizes, strict=True))
    return mean, math.sqrt(len(sizes) / (len(sizes) - 1) * squares) / total


def slow_choice(sums: list[list[float]], sizes: list[float]) -> int:
    """The rule as the docs say it."""
    best = sorted(range(len(sums)), key=lambda k: (math.fsum(sums[k]), k))[0]
    for k in range(len(sums)):
        if np.sum(sums[k]) > np.sum(sums[0]):
            continue
        behind, error = slow_difference(sums[k], sums[best], sizes)
        if behind <= error or behind <= math.fsum(sums[best]) / math.fsum(sizes) / 1000:
            return k
    raise AssertionError("the best is within one standard error of itself")


@st.composite
def trials(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Losses of models that differ by more or less than their noise."""
    models, groups = draw(st.integers(1, 6)), draw(st.integers(2, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = rng.integers(50, 200, groups).astype(float)
    common = rng.uniform(0.3, 0.7, groups)
    gains = rng.choice([-0.01, 0.0, 0.004, 0.01, 0.03], (models, 1))
    own = rng.normal(0, draw(st.sampled_from([0.001, 0.01, 0.05])), (models, groups))
    return (common - gains + own) * sizes, sizes


@given(trials())
def test_agrees_with_the_slow_rule(trial: tuple[np.ndarray, np.ndarray]) -> None:
    sums, sizes = trial
    assert simplest_good(sums, sizes).chosen == slow_choice(sums.tolist(), sizes.tolist())
    for row in sums[1:]:
        found = paired_difference(sums[0], row, sizes)
        assert found == pytest.approx(slow_difference(sums[0].tolist(), row.tolist(), sizes.tolist()), abs=1e-12)


def test_the_slow_rule_takes_every_way() -> None:
    """Else agreement would say little: the fall-back, the best, and one simpler than the best are all chosen."""
    sizes, noise = np.full(4, 10.0), np.array([1.0, -1.0, 1.0, -1.0])
    base = np.full(4, 5.0)
    near = base - 1.0 + 0.04 * noise
    for best, chosen in ((base - 0.001, 0), (near - 0.01, 1), (near - 0.5, 2)):
        sums = np.stack([base, near if chosen else base, best + 0.03 * noise])
        assert simplest_good(sums, sizes).chosen == slow_choice(sums.tolist(), sizes.tolist()) == chosen


def test_what_is_worse_than_the_simplest_is_not_taken() -> None:
    """Its noise makes it as good as the best by its own standard error, which says nothing for it."""
    noise = np.array([1.0, -1.0, 1.0, -1.0])
    sums = np.stack([np.full(4, 5.0), 5.1 + 0.7 * noise, 4.9 + 0.01 * noise])
    assert simplest_good(sums, np.full(4, 10.0)) == (2, 2)


def test_worked_by_hand() -> None:
    """Gaps 2 and 4 over sizes 1 and 2: mean 6 / 3 = 2, off by 0 and 0; over sizes 1 and 1: mean 3, off by -1 and 1."""
    ones = np.ones(2)
    exact = paired_difference(np.array([3.0, 5.0]), ones, np.array([1.0, 2.0]))
    assert exact == (2.0, 0.0)
    even = paired_difference(np.array([3.0, 5.0]), ones, ones)
    assert even == (3.0, math.sqrt(2 * 2) / 2)


def test_one_group_says_nothing() -> None:
    assert paired_difference(np.array([3.0]), np.array([1.0]), np.ones(1)) == (2.0, math.inf)
    assert simplest_good(np.array([[3.0], [1.0]]), np.ones(1)) == (0, 1)


def test_what_is_not_finite_is_out() -> None:
    sums = np.array([[5.0, 5.0, 5.0], [1.0, np.nan, 1.0], [np.inf, 1.0, 1.0], [4.0, 4.0, 4.0]])
    assert simplest_good(sums, np.ones(3)) == (3, 3)


def test_a_gain_of_less_than_a_thousandth_is_not_worth_it() -> None:
    base = np.full(5, 1.0)
    assert simplest_good(np.stack([base, base * 0.9991]), np.ones(5)).chosen == 0
    assert simplest_good(np.stack([base, base * 0.9989]), np.ones(5)).chosen == 1


def test_a_loss_of_zero_is_as_good_as_itself() -> None:
    assert simplest_good(np.zeros((2, 3)), np.ones(3)).chosen == 0
