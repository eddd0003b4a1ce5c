from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from segcal.fusion import joint_label_fusion_weights, similarity_weights
from segcal.types import InputError

seeds = st.integers(0, 10**6)


def direct(matrix: np.ndarray, alpha: float) -> np.ndarray:
    """The weights of one voxel by a solve."""
    found = np.linalg.solve(matrix + alpha * np.eye(len(matrix)), np.ones(len(matrix)))
    return found / found.sum()


def constrained(matrix: np.ndarray, alpha: float) -> np.ndarray:
    """The weights of one voxel without negative ones, by a general optimiser."""
    regular, n = matrix + alpha * np.eye(len(matrix)), len(matrix)
    return minimize(
        lambda w: w @ regular @ w,
        np.full(n, 1 / n),
        jac=lambda w: 2 * regular @ w,
        bounds=[(0, None)] * n,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(n)},
        tol=1e-14,
    ).x


def cube(errors: np.ndarray, place: tuple[int, ...], radius: int) -> np.ndarray:
    """The errors `[n, voxels]` of the cube around a voxel, cut at the edge of the image."""
    box = tuple(slice(max(0, x - radius), x + radius + 1) for x in place)
    return errors[(slice(None), *box)].reshape(len(errors), -1)


@given(seeds, st.integers(1, 17), st.floats(1e-3, 10), st.floats(0.5, 3))
def test_closed_form_is_the_direct_solve(seed: int, n: int, alpha: float, beta: float) -> None:
    probabilities = np.random.default_rng(seed).uniform(size=(n, 3, 4))
    weights = joint_label_fusion_weights(probabilities, alpha, beta=beta)
    for place in np.ndindex(3, 4):
        e = (1 - probabilities[(slice(None), *place)]) ** beta
        assert np.abs(weights[(slice(None), *place)] - direct(np.outer(e, e), alpha)).max() < 1e-10


@pytest.mark.parametrize("radius", [1, 2])
def test_patch_sums_are_the_direct_solve(radius: int) -> None:
    probabilities = np.random.default_rng(1).uniform(size=(5, 4, 6, 5))
    weights = joint_label_fusion_weights(probabilities, 0.1, patch=radius)
    for place in np.ndindex(4, 6, 5):
        e = cube(1 - probabilities, place, radius)
        assert np.abs(weights[(slice(None), *place)] - direct(e @ e.T, 0.1)).max() < 1e-10


@given(seeds)
def test_nonnegative_weights_are_the_constrained_minimum(seed: int) -> None:
    probabilities = np.random.default_rng(seed).uniform(size=(5, 2))
    weights = joint_label_fusion_weights(probabilities, 0.05, nonnegative=True)
    for place in range(2):
        e = 1 - probabilities[:, place]
        assert np.abs(weights[:, place] - constrained(np.outer(e, e), 0.05)).max() < 1e-5


def test_nonnegative_patch_weights_are_the_constrained_minimum() -> None:
    probabilities = np.random.default_rng(2).uniform(size=(6, 3, 3, 2)) ** 2
    free, bounded = (joint_label_fusion_weights(probabilities, 0.01, patch=1, nonnegative=n) for n in (False, True))
    assert free.min() < 0 <= bounded.min()
    for place in np.ndindex(3, 3, 2):
        e = cube(1 - probabilities, place, 1)
        assert np.abs(bounded[(slice(None), *place)] - constrained(e @ e.T, 0.01)).max() < 1e-5


@given(seeds, st.booleans(), st.sampled_from([0, 1]))
def test_order_of_atlases_does_not_matter(seed: int, nonnegative: bool, patch: int) -> None:
    random = np.random.default_rng(seed)
    probabilities, order = random.uniform(size=(6, 3, 3)), random.permutation(6)
    weights = joint_label_fusion_weights(probabilities, patch=patch, nonnegative=nonnegative)
    again = joint_label_fusion_weights(probabilities[order], patch=patch, nonnegative=nonnegative)
    assert np.allclose(weights[order], again, atol=1e-10)
    assert np.allclose(weights.sum(axis=0), 1)


def test_identical_atlases_share_the_weight_of_one() -> None:
    probabilities = np.random.default_rng(3).uniform(size=(4, 6, 6, 6))
    twice = np.concatenate([probabilities[:1], probabilities])
    # where M has full rank and alpha vanishes, a copy brings no information
    once = joint_label_fusion_weights(probabilities, 1e-9, patch=1)
    shared = joint_label_fusion_weights(twice, 1e-9, patch=1)
    assert np.allclose(shared[0], shared[1], atol=1e-6)
    assert np.allclose(shared[0] + shared[1], once[0], atol=1e-5)
    assert np.allclose(shared[2:], once[1:], atol=1e-5)
    # of rank one, exactly, if every atlas is there twice and alpha with them
    all_twice = joint_label_fusion_weights(np.concatenate([probabilities] * 2), 0.2)
    assert np.allclose(2 * all_twice[:4], joint_label_fusion_weights(probabilities, 0.1), atol=1e-12)


def test_a_perfect_atlas_wins() -> None:
    others = np.full((3, 5), 0.6)
    errors = np.array([0.1, 1e-2, 1e-3, 1e-4, 0.0])
    weights = joint_label_fusion_weights(np.concatenate([1 - errors[None], others]), 1e-9)
    gap = np.abs(weights[0] - 1)  # above 1, as the others are held against it, until they count for nothing
    assert (np.diff(gap) < 0).all()
    assert gap[-1] < 1e-7
    # by hand: e = (0, a, a) gives 1 : alpha / (alpha + 2 a^2), here 1 : 1/6
    assert joint_label_fusion_weights(np.array([[1.0], [0.5], [0.5]]))[0, 0] == pytest.approx(1 / (1 + 2 / 6))


@pytest.mark.parametrize("options", [{}, {"patch": 1}, {"nonnegative": True}, {"patch": 1, "nonnegative": True}])
def test_all_right_means_equal_weights(options: dict[str, int]) -> None:
    assert np.allclose(joint_label_fusion_weights(np.ones((7, 3, 3)), **options), 1 / 7, atol=1e-15)


def test_weights_of_intensities() -> None:
    random = np.random.default_rng(4)
    target = random.normal(size=(7, 8, 6))
    images = np.stack([3 * target + 5, target + 0.5 * random.normal(size=target.shape), random.normal(size=(7, 8, 6))])
    weights = similarity_weights(target, images, nonnegative=True)
    assert np.allclose(weights.sum(axis=0), 1)
    mean = weights.mean(axis=(1, 2, 3))
    assert mean[0] > mean[1] > mean[2]  # brightness and contrast do not count as errors
    with pytest.raises(InputError, match="warped images must have shape"):
        similarity_weights(target, images[:, 1:])


def test_wrong_input_is_refused() -> None:
    with pytest.raises(InputError, match="apply a sigmoid"):
        joint_label_fusion_weights(np.array([[1.5]]))
    with pytest.raises(InputError, match="must lie in 0"):
        joint_label_fusion_weights(np.array([[np.nan]]))
    with pytest.raises(InputError, match="alpha and beta must be positive"):
        joint_label_fusion_weights(np.array([[0.5]]), 0)
    with pytest.raises(InputError, match="n of at least 1"):
        joint_label_fusion_weights(np.zeros((0, 3)))
    for patch in (-1, 1.5):
        with pytest.raises(InputError, match="patch must be"):
            joint_label_fusion_weights(np.array([[0.5]]), patch=patch)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="intensities must be finite"):
        similarity_weights(np.array([np.nan, 1.0, 2.0]), np.ones((2, 3)))
