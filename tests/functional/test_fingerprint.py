"""Fingerprints: equal for copies however they are stored, different for everything else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segcal.cases.channels import channel_case
from segcal.data.folders.probabilities import LazyLogits
from segcal.functional.checks import probability_doubt
from segcal.functional.fingerprint import _grid, fingerprint
from segcal.types import Case

SHAPES = [(3, 40), (3, 12, 17), (2, 64, 1), (57, 30, 20, 25), (1, 9, 9)]


def case_of(shape: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape).astype(np.float16).astype(np.float32), rng.integers(0, 3, shape[1:])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_copy_is_recognised_however_it_is_stored(shape: tuple[int, ...], tmp_path: Path) -> None:
    logits, labels = case_of(shape)
    expected = fingerprint(logits, labels)
    np.save(tmp_path / "logits.npy", logits)
    forms: list[tuple[Any, Any]] = [
        (np.load(tmp_path / "logits.npy", mmap_mode="r"), labels.astype(np.uint8)),
        (np.asfortranarray(logits), labels),
        (logits.astype(np.float16), torch.from_numpy(labels)),
        (torch.from_numpy(logits).double().requires_grad_(), labels.astype(">i4")),
        (torch.from_numpy(logits).half(), labels),
        (np.where(logits == 0, -0.0, logits), labels),
    ]
    assert len(expected) == 32
    assert {fingerprint(*form) for form in forms} == {expected}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_other_content_is_told_apart(shape: tuple[int, ...]) -> None:
    logits, labels = case_of(shape)
    several = [fingerprint(*case_of(shape, seed)) for seed in range(20)]
    several += [fingerprint(logits * 2, labels), fingerprint(logits, labels + 1)]
    if len(shape) > 2:
        turned = np.swapaxes(logits, 1, 2), np.swapaxes(labels, 0, 1)
        several.append(fingerprint(*turned))
    assert len(set(several)) == len(several)


@given(
    shape=st.tuples(st.integers(1, 60), st.integers(1, 300), st.integers(1, 300)),
    depth=st.integers(1, 200) | st.none(),
)
def test_the_grid_is_bounded_and_within(shape: tuple[int, int, int], depth: int | None) -> None:
    full = shape if depth is None else (*shape, depth)
    sizes = [len(range(n)[part]) for n, part in zip(full[1:], _grid(full), strict=True)]
    assert all(sizes)
    assert full[0] * np.prod(sizes) <= 3 * (1 << 15)
    if max(full[1:]) <= 5:
        assert tuple(sizes) == full[1:]  # small images are hashed whole


def test_one_pixel_of_a_small_image_is_enough() -> None:
    logits, labels = case_of((3, 12, 16))
    for at in [(0, 0), (11, 15), (5, 9)]:
        moved = logits.copy()
        moved[1][at] = np.nextafter(moved[1][at], 9)
        assert fingerprint(moved, labels) != fingerprint(logits, labels)


def test_the_same_scores_everywhere_have_no_fingerprint() -> None:
    """Empty slices whose probabilities are exactly 0 and 1 are all alike, and none is a copy of another."""
    probs = np.zeros((2, 8, 8), np.float16)
    probs[0] = 1
    assert fingerprint(LazyLogits(probs), np.zeros((8, 8), np.uint8)) == ""  # type: ignore[arg-type]
    probs[:, 3, 4] = 0.25, 0.75
    assert fingerprint(LazyLogits(probs), np.zeros((8, 8), np.uint8)) != ""  # type: ignore[arg-type]


def test_a_one_logit_head_has_the_fingerprint_of_its_two_classes() -> None:
    logits, labels = case_of((1, 20, 30))
    one = Case("a", logits, labels)
    two = replace(one, logits=np.concatenate([0 * logits, logits]))
    assert fingerprint(one.logits, labels) == fingerprint(two.logits, labels)
    assert fingerprint(one.logits, labels) == fingerprint(channel_case(one).logits, labels)


@pytest.mark.parametrize(
    "logits", [np.zeros((0, 4)), np.zeros((3, 0, 4)), np.zeros(3), np.zeros((2, 4), complex), np.full((2, 4), "a")]
)
def test_what_holds_no_numbers_is_left_to_the_checks(logits: np.ndarray) -> None:
    assert fingerprint(logits, np.zeros(logits.shape[1:], int)) == ""
    assert probability_doubt(logits) is None


@pytest.mark.filterwarnings("error")
def test_what_is_not_finite_is_left_to_the_checks() -> None:
    """Among it NaN that signals, and infinities that cannot be added up."""
    logits = np.random.default_rng(0).random((3, 8, 9), np.float32)
    labels = np.zeros((8, 9), np.uint8)
    for values in ((0x7FA00001,) * 3, (0x7FC00000, 0x7F800000, 0xFF800000)):
        logits[:, 0, 0] = np.array(values, np.uint32).view(np.float32)
        assert fingerprint(logits, labels)
        assert probability_doubt(logits) is None


def test_impossible_classes_are_part_of_the_content() -> None:
    logits = np.random.default_rng(0).normal(size=(3, 8, 9))
    labels = np.zeros((8, 9), np.uint8)
    one, other = logits.copy(), logits.copy()
    one[1], other[2] = -np.inf, -np.inf
    found = {fingerprint(scores, labels) for scores in (logits, one, other)}
    assert len(found) == 3
    assert "" not in found
