"""Intervals against scipy, clusters against images drawn by hand, and the edges of what can be said."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from segcal.statistics import bootstrap_interval, bootstrap_intervals, bootstrap_weights, clusters_of, weighted_sums
from segcal.statistics.bootstrap import _bca_shares, bootstrap_doubts, expanded_shares

NAN = float("nan")


@pytest.mark.parametrize("kind", ["percentile", "bca"])
@pytest.mark.parametrize("what", ["mean", "spread"])
def test_intervals_are_those_of_scipy(kind: str, what: str) -> None:
    """Of a skewed sample, so that bias and acceleration matter; both draw 20,000 times, each in its own way.

    The interval of scipy is not expanded for few images; it is asked for as much more than 95 % instead.
    """
    low_share, high_share = expanded_shares(0.95, 25)
    values = np.random.default_rng(3).exponential(size=25)

    def weighted(weights: np.ndarray) -> np.ndarray:
        mean = weights @ values / weights.sum(axis=1)
        return mean if what == "mean" else np.sqrt(weights @ values**2 / weights.sum(axis=1) - mean**2)

    low, high = bootstrap_interval(weighted, 25, kind=kind, repetitions=20_000)
    found = stats.bootstrap(
        (values,),
        np.mean if what == "mean" else np.std,
        n_resamples=20_000,
        confidence_level=high_share - low_share,
        method="BCa" if kind == "bca" else "percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    tolerance = 0.06 * (found.high - found.low)  # extreme quantiles are rarely drawn
    assert low == pytest.approx(found.low, abs=tolerance)
    assert high == pytest.approx(found.high, abs=tolerance)


@pytest.mark.filterwarnings("error")
def test_sums_of_infinite_values_are_not_known() -> None:
    assert not np.isfinite(weighted_sums(np.ones((2, 2), np.int64), np.array([np.inf, 1.0]))).any()


def test_bca_by_hand() -> None:
    """Efron's formula step by step on the same draws."""
    values = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    draws = bootstrap_weights(5, 400, seed=9) @ values / 5
    normal = NormalDist()
    bias = normal.inv_cdf(((draws < 6.2).mean() + (draws <= 6.2).mean()) / 2)
    left = [(31 - value) / 4 for value in values]
    off = [sum(left) / 5 - value for value in left]
    acceleration = sum(d**3 for d in off) / (6 * sum(d**2 for d in off) ** 1.5)
    ends = [bias + normal.inv_cdf(share) for share in expanded_shares(0.9, 5)]
    shares = [normal.cdf(bias + z / (1 - acceleration * z)) for z in ends]
    found = bootstrap_interval(lambda w: w @ values / w.sum(axis=1), 5, kind="bca", level=0.9, repetitions=400, seed=9)
    assert found == pytest.approx(tuple(np.quantile(draws, shares)))


def test_several_numbers_are_several_intervals() -> None:
    values = np.random.default_rng(0).normal(size=(12, 3))
    for kind in ("percentile", "bca"):
        low, high = bootstrap_intervals(lambda w: w @ values / w.sum(axis=1, keepdims=True), 12, kind=kind, seed=4)
        for k in range(3):
            alone = bootstrap_interval(lambda w, k=k: w @ values[:, k] / w.sum(axis=1), 12, kind=kind, seed=4)
            assert (low[k], high[k]) == pytest.approx(tuple(alone), rel=1e-12)


@pytest.mark.parametrize("kind", ["percentile", "bca"])
def test_clusters_are_drawn_whole(kind: str) -> None:
    """Clusters of several images give what their sums give as images."""
    random = np.random.default_rng(5)
    clusters = clusters_of(["a", "b", "", "a", "c", "b", "", "a"])
    assert clusters.tolist() == [0, 1, 2, 0, 3, 1, 4, 0]
    hits, pixels = random.integers(1, 9, 8), random.integers(9, 20, 8)
    sums = [np.bincount(clusters, values) for values in (hits, pixels)]
    found = bootstrap_interval(lambda w: (w @ hits) / (w @ pixels), 8, kind=kind, clusters=clusters)
    assert found == pytest.approx(tuple(bootstrap_interval(lambda w: (w @ sums[0]) / (w @ sums[1]), 5, kind=kind)))


@given(st.lists(st.sampled_from(["", "a", "b"]), max_size=8))
def test_clusters_are_numbered_without_gaps(groups: list[str]) -> None:
    found = clusters_of(groups)
    assert set(found.tolist()) == set(range(groups.count("") + len({*groups} - {""})))
    for i, j in np.ndindex(len(groups), len(groups)):
        assert (found[i] == found[j]) == (i == j or (groups[i] == groups[j] != ""))


@pytest.mark.parametrize("kind", ["percentile", "bca"])
def test_one_cluster_says_nothing(kind: str) -> None:
    found = bootstrap_interval(lambda w: w @ np.arange(3.0), 3, kind=kind, clusters=clusters_of(["a", "a", "a"]))
    assert all(math.isnan(end) for end in found)
    assert all(math.isnan(end) for end in bootstrap_interval(lambda w: w.sum(axis=1), 0, kind=kind))
    assert all(math.isnan(end) for end in bootstrap_interval(lambda w: w.sum(axis=1), 3, kind=kind, repetitions=0))
    for units, numbers in ((0, 0), (1, 2)):
        for ends in bootstrap_intervals(lambda w: np.ones((len(w), 2)), units, kind=kind):
            assert ends.shape == (numbers,)
            assert np.isnan(ends).all()


def test_bca_of_a_constant_is_the_constant() -> None:
    assert bootstrap_interval(lambda w: np.full(len(w), 2.0), 4, kind="bca") == (2.0, 2.0)


@pytest.mark.parametrize("side", [-1, 1])
def test_half_a_repetition_keeps_the_bias_finite(side: int) -> None:
    """All of 100 draws lie on one side of the value, as if half a draw lay on the other; nothing is skewed."""
    normal = NormalDist()
    bias = normal.inv_cdf(0.005 if side > 0 else 0.995)
    expected = [normal.cdf(2 * bias + normal.inv_cdf(share)) for share in (0.3, 0.6)]
    found = _bca_shares(side * np.arange(1.0, 101.0), 0.0, np.zeros(4), np.array([0.3, 0.6]))
    assert found.tolist() == pytest.approx(expected)


def test_bca_leaves_out_undefined_repetitions() -> None:
    """The mean over images that may be undefined: some draws hold none that is."""
    values, known = np.array([1.0, 2.0, 0.0]), np.array([1.0, 1.0, 0.0])

    def mean(weights: np.ndarray) -> np.ndarray:
        many = weights @ known
        return np.divide(weights @ values, many, out=np.full(len(many), np.nan), where=many > 0)

    low, high = bootstrap_interval(mean, 3, kind="bca", seed=2)
    assert 1 <= low <= high <= 2
    assert all(math.isnan(end) for end in bootstrap_interval(lambda w: np.full(len(w), NAN), 3, kind="bca"))


def test_intervals_are_of_95_percent_from_1000_repetitions_unless_asked_otherwise(rng: np.random.Generator) -> None:
    values = rng.normal(size=(12, 2))

    def mean(weights: np.ndarray) -> np.ndarray:
        return weights @ values / weights.sum(axis=1, keepdims=True)

    drawn = mean(bootstrap_weights(12, 1000, seed=0))
    np.testing.assert_allclose(bootstrap_intervals(mean, 12), np.quantile(drawn, expanded_shares(0.95, 12), axis=0))
    alone = bootstrap_interval(lambda weights: mean(weights)[:, 0], 12)
    np.testing.assert_allclose(alone, np.quantile(drawn[:, 0], expanded_shares(0.95, 12)))


UNKNOWN, SOME = np.full(3, np.nan), np.array([1.0, 2.0, 4.0])


@pytest.mark.parametrize(("drawn", "value", "left"), [(UNKNOWN, 2.0, SOME), (SOME, 2.0, UNKNOWN), (SOME, np.nan, SOME)])
def test_a_bca_interval_needs_draws_a_value_and_what_is_left(drawn: np.ndarray, value: float, left: np.ndarray) -> None:
    assert np.isnan(_bca_shares(drawn, value, left, np.array([0.1, 0.9]))).all()


@pytest.mark.parametrize(
    ("groups", "doubt"),
    [
        ([""], ["1 image gives no 95 % interval; measure 10 or more"]),
        (["", ""], ["95 % intervals from 2 images are too short; measure 10 or more"]),
        (["a", "a"], ["1 group gives no 95 % interval; measure 10 or more"]),
        ([""] * 10, []),
    ],
)
def test_few_images_or_groups_are_doubted(groups: list[str], doubt: list[str]) -> None:
    assert bootstrap_doubts(groups) == doubt


@given(st.integers(1, 60), st.integers(0, 2**32 - 1), st.floats(1e-12, 1e12))
def test_weighted_sums_do_not_depend_on_the_order(units: int, seed: int, scale: float) -> None:
    """Otherwise intervals would change with the number of threads that share the product."""
    random = np.random.default_rng(seed)
    values, order = scale * random.standard_normal((units, 3)), random.permutation(units)
    weights = bootstrap_weights(units, 5, seed)
    found = weighted_sums(weights, values)
    assert (found == weighted_sums(weights[:, order], values[order])).all()
    exact = [
        [float(sum(int(w) * Fraction(v) for w, v in zip(row, column, strict=True))) for column in values.T]
        for row in weights
    ]
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-15 * units * np.abs(values).max())


def test_weighted_sums_of_nothing_and_of_unknown_values() -> None:
    assert weighted_sums(np.ones((2, 3)), np.zeros((3, 1))).tolist() == [[0.0], [0.0]]
    assert np.isnan(weighted_sums(np.ones((1, 2)), np.array([[np.nan, 1.0], [2.0, 1.0]]))).tolist() == [[True, False]]


def test_bca_asks_for_the_draws_the_whole_and_what_is_left_without_each_cluster() -> None:
    """Clusters {0, 2}, {1} and {3}; each image has the weight of its cluster."""
    asked: list[np.ndarray] = []

    def mean(weights: np.ndarray) -> np.ndarray:
        asked.append(weights)
        return weights @ np.arange(4.0) / weights.sum(axis=1)

    bootstrap_interval(mean, 4, kind="bca", repetitions=7, seed=3, clusters=np.array([0, 1, 0, 2]))
    drawn = bootstrap_weights(3, 7, seed=3)[:, [0, 1, 0, 2]]
    left = [[1, 1, 1, 1], [0, 1, 0, 1], [1, 0, 1, 1], [1, 1, 1, 0]]
    np.testing.assert_array_equal(np.concatenate(asked), np.concatenate([drawn, left]))


def gaps_of(weights: np.ndarray, gaps: np.ndarray, around: np.ndarray | float = 0.0) -> np.ndarray:
    """Mean over two bins of the absolute gap of images `[n, 2]`, to gaps `around`."""
    return np.abs(weights @ gaps / weights.sum(axis=1, keepdims=True) - around).mean(axis=1, keepdims=True)


def test_the_lower_end_of_an_absolute_error_is_corrected_for_noise() -> None:
    """By hand: 0 where the noise explains the error, otherwise the quantile less twice the bias of the draws."""
    random, shares = np.random.default_rng(3), expanded_shares(0.95, 20)
    for shift, explained in ((0.0, True), (0.15, False)):
        gaps = random.normal(shift, 0.1, size=(20, 2))
        mean = gaps.mean(axis=0)
        drawn = gaps_of(bootstrap_weights(20, 1000, seed=0), gaps)[:, 0]
        value, noise = np.abs(mean).mean(), partial(gaps_of, gaps=gaps, around=mean)
        low, high = bootstrap_intervals(partial(gaps_of, gaps=gaps), 20, noise=noise)
        assert (low[0] == 0) == explained
        if not explained:
            assert low[0] == pytest.approx(np.quantile(drawn, shares[0]) - 2 * (drawn.mean() - value))
        assert high[0] == pytest.approx(max(value, np.quantile(drawn, shares[1])))


@settings(max_examples=25)
@given(
    st.integers(2, 30), st.integers(0, 2**32 - 1), st.sampled_from(["percentile", "bca"]), st.sampled_from([0.0, 0.3])
)
def test_no_interval_leaves_out_its_estimate(units: int, seed: int, kind: str, shift: float) -> None:
    gaps = np.random.default_rng(seed).normal(shift, 0.1, size=(units, 2))
    noise = partial(gaps_of, gaps=gaps, around=gaps.mean(axis=0))
    for own in (None, noise):
        low, high = bootstrap_intervals(partial(gaps_of, gaps=gaps), units, kind=kind, repetitions=60, noise=own)
        assert low[0] <= np.abs(gaps.mean(axis=0)).mean() <= high[0]


def test_unknown_noise_corrects_nothing() -> None:
    values = np.random.default_rng(0).normal(size=(9, 1))

    def mean(weights: np.ndarray) -> np.ndarray:
        return weights @ values / 9

    plain = bootstrap_intervals(mean, 9)
    np.testing.assert_array_equal(plain, bootstrap_intervals(mean, 9, noise=lambda w: np.full((len(w), 1), np.nan)))


def test_intervals_of_few_images_are_expanded_by_student() -> None:
    """Of 5 images, t(4) at 0.975 is 2.776; repetitions of the mean vary by a factor sqrt(4/5) less than the mean."""
    expected = NormalDist().cdf(2.776445 * math.sqrt(5 / 4))
    assert expanded_shares(0.95, 5).tolist() == pytest.approx([1 - expected, expected], rel=1e-5)
