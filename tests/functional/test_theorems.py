"""The lemmas and theorems of the paper (appendix "Temperature Scaling from Entropy Point of View"), one test each.

Each is stated for a data set (TS), for every image (IBTS) and for every pixel (LTS): the sums run over other sets of
pixels. A `Problem` holds the logits of one such set, drawn at random, and what segcal finds for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from segcal.functional.temperature import (
    Likelihood,
    confidence_state,
    likelihood,
    optimal_inverse_temperature,
    pixel_inverse_temperature,
)

TINY = 1e-7


@dataclass(frozen=True)
class Problem:
    """Logits `[N, L]`, labels `[N]` and the inverse temperature of least NLL."""

    logits: np.ndarray
    labels: np.ndarray
    optimum: float

    @property
    def target(self) -> float:
        """The paper's epsilon: the summed logits of the labels."""
        return float(np.take_along_axis(self.logits, self.labels[:, None], 1).sum())

    @property
    def is_chance(self) -> bool:
        """Whether the labels' logits are on average not above the mean of all logits."""
        return self.target <= self.logits.mean(axis=1).sum()

    @property
    def is_perfect(self) -> bool:
        """Whether every label has the largest logit, so that no finite inverse temperature is the optimum."""
        return self.target >= self.logits.max(axis=1).sum() - TINY

    def probs(self, alpha: float) -> np.ndarray:
        return softmax(self.logits, alpha)

    def weighted(self, alpha: float) -> float:
        """The weighted averaged logits of Lemma 1, summed."""
        return float((self.logits * self.probs(alpha)).sum())

    def nll(self, alpha: float) -> float:
        z = alpha * (self.logits - self.logits.max(axis=1, keepdims=True))
        picked = np.take_along_axis(z, self.labels[:, None], 1)[:, 0]
        return float((np.log(np.exp(z).sum(axis=1)) - picked).sum())

    def entropy(self, alpha: float) -> float:
        return entropy(self.probs(alpha))


def softmax(logits: np.ndarray, alpha: float) -> np.ndarray:
    scaled = alpha * logits
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def entropy(probs: np.ndarray) -> float:
    return float(-(probs * np.log(np.where(probs > 0, probs, 1.0))).sum())


def solved(images: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """The optimum of TS (several images) or IBTS (one)."""

    def at(alpha: float) -> Likelihood:
        parts = [likelihood(torch.from_numpy(z.T.copy()), torch.from_numpy(y), alpha) for z, y in images]
        return Likelihood(*(sum(terms) for terms in zip(*parts, strict=True)))

    return optimal_inverse_temperature(at).inverse_temperature


def problems(images: list[tuple[np.ndarray, np.ndarray]]) -> Iterator[Problem]:
    """TS over all images, IBTS over each, LTS over each pixel of the first."""
    yield Problem(*(np.concatenate(parts) for parts in zip(*images, strict=True)), solved(images))
    for image in images:
        yield Problem(*image, solved([image]))
    z, y = images[0]
    for k, alpha in enumerate(pixel_inverse_temperature(torch.from_numpy(z.T.copy()), torch.from_numpy(y)).tolist()):
        yield Problem(z[k : k + 1], y[k : k + 1], alpha)


@st.composite
def data_sets(draw: st.DrawFn) -> list[Problem]:
    """Images of a few pixels, from random labels to labels drawn from over- and underconfident scores."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    classes, pixels = draw(st.integers(2, 6)), draw(st.integers(1, 6))
    spread, temperature = draw(st.sampled_from([0.1, 1.0, 5.0])), draw(st.sampled_from([0.1, 0.5, 1.0, 3.0, 1e3]))
    images = []
    for _ in range(draw(st.integers(1, 3))):
        z = rng.normal(scale=spread, size=(pixels, classes))
        images.append((z, (z / temperature + rng.gumbel(size=z.shape)).argmax(axis=1)))
    return list(problems(images))


ALPHAS = st.floats(1e-3, 50.0)


@given(data_sets(), ALPHAS, ALPHAS)
def test_lemma_1_weighted_logits_are_monotone_and_bounded(found: list[Problem], one: float, other: float) -> None:
    low, high = sorted((one, other))
    for problem in found:
        mean, top = problem.logits.mean(axis=1).sum(), problem.logits.max(axis=1).sum()
        assert mean - TINY <= problem.weighted(low) <= problem.weighted(high) + TINY <= top + 2 * TINY
        assert problem.weighted(-high) >= problem.logits.min(axis=1).sum() - TINY, "the remark on negative temperatures"


@given(data_sets(), ALPHAS)
def test_theorem_1_the_optimum_of_nll(found: list[Problem], alpha: float) -> None:
    for problem in found:
        best = problem.optimum
        if problem.is_chance:
            assert best == 0
        elif problem.is_perfect:
            assert best == np.inf
            continue
        else:
            assert best > 0
            np.testing.assert_allclose(problem.weighted(best), problem.target, atol=1e-6)
        assert problem.nll(best) <= problem.nll(alpha) + TINY


@given(data_sets(), st.integers(0, 2**32 - 1))
def test_lemma_2_equal_probabilities_have_the_largest_entropy(found: list[Problem], seed: int) -> None:
    for problem in found:
        pixels, classes = problem.logits.shape
        other = np.random.default_rng(seed).dirichlet(np.ones(classes), size=pixels)
        away = float((other * np.log(other * classes)).sum())  # Kullback-Leibler divergence from equal probabilities
        np.testing.assert_allclose(entropy(other) + away, pixels * np.log(classes), rtol=1e-9)
        assert away > 0, "the maximum is unique"
        certain = np.eye(classes)[problem.labels]
        assert entropy(certain) == 0.0, "the remark on the minimum"


def feasible(problem: Problem, q: np.ndarray) -> np.ndarray:
    """Move a distribution towards the largest logits just as far as the theorem's constraint asks."""
    best = np.eye(q.shape[1])[problem.logits.argmax(axis=1)]
    have, most = float((problem.logits * q).sum()), float((problem.logits * best).sum())
    share = np.clip((problem.target - have) / max(most - have, 1e-300), 0.0, 1.0)
    return (1 - share) * q + share * best


@given(data_sets(), st.integers(0, 2**32 - 1))
def test_theorem_2_temperature_scaling_has_the_largest_entropy(found: list[Problem], seed: int) -> None:
    """Among all distributions whose weighted logits reach those of the labels, and by the divergence: it is unique."""
    for problem in found:
        if np.isinf(problem.optimum):
            continue
        ours = problem.probs(problem.optimum)
        assert (problem.logits * ours).sum() >= problem.target - 1e-6
        other = feasible(problem, np.random.default_rng(seed).dirichlet(np.ones(ours.shape[1]), size=len(ours)))
        assert (problem.logits * other).sum() >= problem.target - 1e-6
        divergence = float((other * np.log(np.where(other > 0, other / ours, 1.0))).sum())
        # one unit of the constraint is worth alpha, the multiplier
        assert entropy(other) + divergence <= entropy(ours) + 1e-6 * (1 + problem.optimum)


@given(data_sets(), ALPHAS)
def test_theorem_2_b_largest_entropy_among_temperatures(found: list[Problem], alpha: float) -> None:
    """The second proof: only inverse temperatures from the optimum on satisfy the constraint."""
    for problem in found:
        best = problem.optimum
        if np.isinf(best):
            continue
        assert problem.weighted(best) >= problem.target - 1e-6
        if problem.weighted(alpha) >= problem.target + TINY:
            assert alpha >= best - 1e-6 * (1 + best)
            assert problem.entropy(alpha) <= problem.entropy(best) + 1e-6
        elif alpha > best * (1 + 1e-3):
            assert problem.weighted(alpha) >= problem.target - 1e-6


@given(data_sets(), ALPHAS)
def test_theorem_3_least_entropy_among_temperatures(found: list[Problem], alpha: float) -> None:
    """Where the labels' logits are at least the mean: only inverse temperatures up to the optimum are allowed."""
    for problem in found:
        best = problem.optimum
        if problem.is_chance:
            continue
        if np.isinf(best):
            assert problem.weighted(alpha) <= problem.target + TINY, "any finite one is allowed"
            continue
        assert problem.weighted(best) <= problem.target + 1e-6
        if problem.weighted(alpha) <= problem.target - TINY:
            assert alpha <= best * (1 + 1e-6)
            assert problem.entropy(alpha) >= problem.entropy(best) - 1e-6


@given(data_sets())
def test_theorem_4_nll_and_entropy_meet(found: list[Problem]) -> None:
    for problem in found:
        best, pixels = problem.optimum, len(problem.labels)
        state = confidence_state(problem.nll(1.0) / pixels, problem.entropy(1.0) / pixels)
        if np.isinf(best):
            assert state != "overconfident"
            continue
        tolerance = 1e-6 * (1 + best) * pixels
        if not problem.is_chance:
            assert abs(problem.nll(best) - problem.entropy(best)) <= tolerance, "(3) the equilibrium"
            balanced = confidence_state(problem.nll(best) / pixels, problem.entropy(best) / pixels, tolerance=tolerance)
            assert balanced == "balanced"
        assert problem.nll(best) <= problem.nll(1.0) + TINY
        if state == "overconfident":
            assert best <= 1 + TINY
            assert problem.entropy(best) >= problem.entropy(1.0) - TINY, "(1) both extremes at once"
        if state == "underconfident":
            assert best >= 1 - TINY
            assert problem.entropy(best) <= problem.entropy(1.0) + TINY, "(2)"
