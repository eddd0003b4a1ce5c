"""Statistics worked by hand, and intervals that cover as often as they say."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import get_args

import numpy as np
import pytest

from segcal.statistics import (
    TESTS,
    Test,
    bootstrap_interval,
    bootstrap_weights,
    mann_whitney_p,
    mean_std,
    significantly_better,
    wilcoxon_p,
)

NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "mean", "std"),
    [([2.0], 2.0, 0.0), ([1.0, 3.0], 2.0, 1.0), ([2, 4, 4, 4, 5, 5, 7, 9], 5.0, 2.0), ([NAN, 1.0, 3.0], 2.0, 1.0)],
)
def test_mean_and_spread(values: list[float], mean: float, std: float) -> None:
    assert mean_std(values) == (mean, std)


@pytest.mark.parametrize("values", [[], [NAN, NAN]])
def test_mean_of_nothing_is_nan(values: list[float]) -> None:
    assert all(math.isnan(number) for number in mean_std(values))


@pytest.mark.filterwarnings("error")
def test_infinite_values_have_no_spread() -> None:
    mean, spread = mean_std([1.0, math.inf])
    assert mean == math.inf
    assert math.isnan(spread)


def test_weights_draw_with_replacement() -> None:
    weights = bootstrap_weights(7, 2000, seed=1)
    assert weights.shape == (2000, 7)
    assert (weights.sum(axis=1) == 7).all()
    assert weights.min() == 0
    assert weights.mean(axis=0) == pytest.approx(np.ones(7), abs=0.1)
    np.testing.assert_array_equal(weights, bootstrap_weights(7, 2000, seed=1))
    assert not np.array_equal(weights, bootstrap_weights(7, 2000, seed=2))


def test_interval_of_two_units_by_hand() -> None:
    """Means of two draws out of {0, 1} are 0, 1/2 and 1 with chances 1/4, 1/2 and 1/4."""
    values = np.array([0.0, 1.0])

    def mean(weights: np.ndarray) -> np.ndarray:
        return weights @ values / 2

    assert bootstrap_interval(mean, 2, repetitions=4000) == (0.0, 1.0)
    assert bootstrap_interval(mean, 2, repetitions=4000, level=0.1) == (0.5, 0.5)


def test_interval_leaves_out_undefined_repetitions() -> None:
    values = np.array([1.0, NAN])
    drawn = bootstrap_interval(lambda w: np.where(w[:, 1] > 0, np.nan, w[:, 0] * values[0] / 2), 2)
    assert drawn == (1.0, 1.0)
    assert all(math.isnan(end) for end in bootstrap_interval(lambda w: np.full(len(w), np.nan), 3))


def test_mann_whitney_by_hand() -> None:
    """Four below four: 1 of 70 orders is as extreme on each side, so p = 2/70."""
    assert mann_whitney_p([1, 2, 3, 4], [5, 6, 7, 8]) == pytest.approx(2 / 70)
    assert mann_whitney_p([5, 6, 7, 8], [1, 2, 3, 4]) == pytest.approx(2 / 70)
    assert mann_whitney_p([1, 2, 3, 4, NAN], [5, 6, NAN, 7, 8]) == pytest.approx(2 / 70)
    assert mann_whitney_p([0, 0.1, 0.2, 0.3], [0.7, 0.8, 0.9, 1]) == pytest.approx(2 / 70), "of any range"


@pytest.mark.parametrize(("a", "b"), [([], [1.0]), ([1.0], [NAN]), ([2.0, 2.0], [2.0, 2.0])])
def test_nothing_to_tell_apart(a: list[float], b: list[float]) -> None:
    assert mann_whitney_p(a, b) == 1.0


def test_benjamini_hochberg_by_hand() -> None:
    """Of p = 0.01, 0.02, 0.03, 0.04 at a rate of 0.04, all pass, since the last does; Bonferroni would pass one."""
    p_of = {0: 0.04, 1: 0.01, 2: 0.03, 3: 0.02}
    pairs = [(np.array([float(k)]), np.array([9.0])) for k in p_of]
    better = partial(significantly_better, lower_is_better=[True] * 4, test="paper")
    with pytest.MonkeyPatch.context() as patch:
        known = replace(TESTS["paper"], p_value=lambda ours, theirs: p_of[int(ours[0])])
        patch.setattr("segcal.statistics.significance.TESTS", {"paper": known})
        assert better(pairs, rate=0.04) == [True] * 4
        assert better(pairs, rate=0.039) == [False] * 4
        p_of.update({0: 0.5, 1: 0.012, 2: 0.03, 3: 0.02})  # adjusted: 0.5, 0.04, 0.04, 0.04
        assert better(pairs, rate=0.041) == [False, True, True, True]
        p_of.update({1: 0.009})  # adjusted: 0.036 for it alone
        assert better(pairs, rate=0.037) == [False, True, False, False]


def test_direction_is_that_of_the_ranks_and_not_of_the_means() -> None:
    """Ours are lower in 11 of 12 images, and one failure raises their mean above that of theirs."""
    ours, theirs = np.append(np.arange(11.0), 1e6), np.arange(12.0) + 20
    for test in TESTS:
        assert significantly_better([(ours, theirs)], lower_is_better=[True], test=test) == [True]
        assert significantly_better([(ours, theirs)], lower_is_better=[False], test=test) == [False]


def test_wilcoxon_by_hand() -> None:
    """Five differences of one sign: 1 of 32 patterns of signs is as extreme on each side, so p = 2/32."""
    ours, theirs = [1.0, 5.0, 2.0, 8.0, 3.0], [1.5, 6.0, 4.0, 8.1, 7.0]
    assert wilcoxon_p(ours, theirs) == wilcoxon_p(theirs, ours) == pytest.approx(2 / 32)
    assert wilcoxon_p([*ours, NAN, 4.0, 7.0], [*theirs, 1.0, NAN, 7.0]) == pytest.approx(2 / 32)


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [NAN]), ([2.0, 3.0], [2.0, 3.0])])
def test_no_pair_to_tell_apart(a: list[float], b: list[float]) -> None:
    assert wilcoxon_p(a, b) == 1.0


def test_pairs_are_seen_where_images_differ_more_than_methods() -> None:
    """The same small gain on every image: paired ranks see it, ranks of all images together do not."""
    hard = np.linspace(0.05, 0.5, 20)
    pair = (hard - 0.01, hard)
    assert significantly_better([pair], lower_is_better=[True], test="wilcoxon") == [True]
    assert significantly_better([pair], lower_is_better=[True], test="paper") == [False]
    assert significantly_better([pair], lower_is_better=[False], test="wilcoxon") == [False]
    assert significantly_better([pair[::-1]], lower_is_better=[False], test="wilcoxon") == [True]


def test_the_registry_is_complete() -> None:
    assert get_args(Test) == tuple(TESTS)
    assert len({test.title for test in TESTS.values()}) == len(TESTS)


@pytest.mark.parametrize("test", TESTS)
def test_every_test_finds_a_clear_difference_and_no_other(test: Test, rng: np.random.Generator) -> None:
    values = rng.normal(size=30)
    pairs = [(values - 9, values), (values, values - 9), (values, values)]
    assert significantly_better(pairs, lower_is_better=[True] * 3, test=test) == [True, False, False]
    assert significantly_better(pairs, lower_is_better=[False] * 3, test=test) == [False, True, False]
    assert TESTS[test].p_value(values, values) == 1.0


def test_every_pair_needs_a_direction() -> None:
    pair = (np.arange(5.0), np.arange(5.0) + 9)
    with pytest.raises(ValueError, match="zip"):
        significantly_better([pair, pair], lower_is_better=[True])


@pytest.mark.parametrize("test", TESTS)
def test_equal_ranks_tend_nowhere(test: Test) -> None:
    """One image is better and one worse by as much; or there is nothing to compare."""
    lower = TESTS[test].tends_lower
    ours, theirs = np.array([1.0, 2.0, 5.0]), np.array([2.0, 1.0, 5.0])
    assert not lower(ours, theirs)
    assert not lower(theirs, ours)
    assert not lower(np.array([NAN]), np.array([NAN]))
    assert lower(ours, theirs + np.array([0.0, 0.5, 0.0])) is True
