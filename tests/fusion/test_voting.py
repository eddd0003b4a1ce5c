from __future__ import annotations

import importlib.util
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segcal.fusion import (
    best_fusion,
    best_probabilities,
    joint_label_fusion_weights,
    majority_vote,
    plurality_vote,
    similarity_weights,
    staple,
    voxel_changes,
    weighted_vote,
)
from segcal.fusion.table2 import Changes
from segcal.types import InputError
from support.program import printed_by

seeds = st.integers(0, 10**6)


@given(seeds)
def test_votes_are_counted(seed: int) -> None:
    random = np.random.default_rng(seed)
    labels, weights = random.integers(0, 4, (5, 12)), random.uniform(-0.5, 1, (5, 12))
    weighted, plural, major = weighted_vote(labels, weights), plurality_vote(labels), majority_vote(labels)
    for x in range(12):
        sums: dict[int, float] = {}
        for label, weight in zip(labels[:, x], weights[:, x], strict=True):
            sums[int(label)] = sums.get(int(label), 0.0) + weight
        assert sums[int(weighted.labels[x])] == pytest.approx(max(sums.values()))
        counts = Counter(labels[:, x].tolist())
        most = max(counts.values())
        assert plural.labels[x] == min(label for label, count in counts.items() if count == most)
        assert plural.agreement[x] == plural.probability[x] == most / 5
        assert major.labels[x] == (plural.labels[x] if most > 2.5 else 0)


def test_probability_is_the_share_of_the_weight() -> None:
    fused = weighted_vote(np.array([[1], [2], [1]]), np.array([[0.2], [0.5], [0.1]]))
    assert fused.labels.tolist() == [2]
    assert fused.probability[0] == pytest.approx(0.5 / 0.8)
    assert fused.agreement[0] == pytest.approx(1 / 3)
    with pytest.raises(InputError, match="shape of the atlas labels"):
        weighted_vote(np.array([[1], [2]]), np.array([[0.2]]))


@given(seeds)
def test_bounds_are_bounds(seed: int) -> None:
    """No fusion beats Best Fusion, and Best Calibration never breaks a voxel that some atlas has right for sure."""
    random = np.random.default_rng(seed)
    labels, truth = random.integers(0, 3, (4, 40)), random.integers(0, 3, 40)
    probabilities = random.uniform(size=(4, 40))
    fused = weighted_vote(labels, joint_label_fusion_weights(probabilities)).labels
    best = best_fusion(labels, truth, fused)
    assert ((best == truth) | (fused != truth)).all()
    assert (best[(labels == truth).any(axis=0)] == truth[(labels == truth).any(axis=0)]).all()
    right = labels == truth
    ideal = best_probabilities(probabilities, right)
    assert set(np.unique(ideal)) <= {0.0, 0.5, 1.0}
    correct = (probabilities >= 0.5) == right
    assert (ideal[correct] == right[correct]).all()
    assert (ideal[~correct] == 0.5).all()


def test_changes_by_hand() -> None:
    labels = np.array([[1, 1, 2, 0, 2], [1, 0, 1, 1, 1]])
    truth = np.array([1, 1, 1, 0, 3])
    before, after = np.array([1, 0, 1, 0, 2]), np.array([1, 1, 2, 0, 1])
    changes = voxel_changes(before, after, truth, labels, np.ones(5, bool))
    assert changes == Changes(possible=4, changed=3, corrected=1, broken=1)
    assert changes.rate == 0.75
    assert changes.wrong_to_correct == changes.correct_to_wrong == pytest.approx(1 / 3)
    inside = np.array([True, False, False, False, False])
    nothing = voxel_changes(before, after, truth, labels, inside)
    assert nothing == Changes(0, 0, 0, 0)
    assert np.isnan([nothing.rate, nothing.wrong_to_correct, nothing.correct_to_wrong]).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_refused(wrong: float) -> None:
    with pytest.raises(InputError, match="weights must be finite"):
        weighted_vote(np.array([[1, 2], [1, 2]]), np.array([[wrong, 1.0], [0.5, 1.0]]))


@pytest.mark.skipif(not importlib.util.find_spec("SimpleITK"), reason="SimpleITK is not installed")
def test_staple_outvotes_a_bad_rater() -> None:
    random = np.random.default_rng(0)
    truth = np.zeros((12, 12, 12), np.int16)
    truth[3:9, 3:9, 3:9], truth[5:7, 5:7, 5:7] = 1, 2
    raters = np.stack([truth, truth, random.integers(0, 3, truth.shape).astype(np.int16)])
    assert (staple(raters) == truth).mean() > 0.99
    with pytest.raises(InputError, match="0 to 254"):
        staple(raters - 1)


@pytest.mark.skipif(not importlib.util.find_spec("SimpleITK"), reason="SimpleITK is not installed")
def test_staple_ends_with_the_largest_label() -> None:
    """In a process of its own, which can be stopped: the filter counted labels in 8 bits, and never ended."""
    program = (
        "import numpy as np; from segcal.fusion import staple; print(np.unique(staple(np.full((3, 3, 3, 3), 254))))"
    )
    assert printed_by("-c", program) == "[254]\n"


def test_tensors_and_arrays_are_taken_alike(rng: np.random.Generator) -> None:
    labels = rng.integers(0, 3, (4, 5, 6))
    truth, weights = labels[0], rng.random((4, 5, 6)).astype(np.float32)
    right = labels == truth
    image = weights.mean(0)
    calls: list[tuple[Any, ...]] = [
        (weighted_vote, labels, weights),
        (plurality_vote, labels),
        (majority_vote, labels),
        (joint_label_fusion_weights, weights),
        (similarity_weights, image, weights),
        (best_fusion, labels, truth, labels[1]),
        (best_probabilities, weights, right),
        (voxel_changes, truth, labels[1], labels[2], labels, right[0]),
    ]
    for function, *arrays in calls:
        found, expected = function(*map(torch.from_numpy, arrays)), function(*arrays)
        for ours, theirs in zip(
            *((each if isinstance(each, tuple) else (each,)) for each in (found, expected)), strict=True
        ):
            assert type(ours) is type(theirs)
            np.testing.assert_array_equal(ours, theirs)
    assert joint_label_fusion_weights(torch.rand(3, 4, dtype=torch.bfloat16, requires_grad=True)).shape == (3, 4)
