"""Standardised log-probabilities: compiled and plain, against float64, and unmoved by a shift."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segcal.functional.standardise import standardised_log_probabilities
from segcal.kernels.constants import SMALLEST_LOG_PROBABILITY
from segcal.kernels.dispatch import plain_only


def exact(logits: torch.Tensor, scale: float, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """One class at a time, in float64."""
    z = scale * logits.double().numpy()
    z -= z.max(axis=1, keepdims=True)
    log_probs = np.maximum(z - np.log(np.exp(z).sum(axis=1, keepdims=True)), SMALLEST_LOG_PROBABILITY)
    return np.stack([(log_probs[:, k] - mean[k]) / deviation[k] for k in range(z.shape[1])], axis=1)


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from([(1, 2, 1), (2, 3, 300), (1, 11, 9, 40), (1, 4, 3, 5, 30)]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    scale=st.sampled_from([1e-3, 0.5, 1.0, 40.0]),
    plain=st.booleans(),
)
def test_both_forms_are_the_equation(
    seed: int, shape: tuple[int, ...], dtype: torch.dtype, scale: float, plain: bool
) -> None:
    random = np.random.default_rng(seed)
    logits = torch.from_numpy(random.normal(scale=random.choice([0.1, 5.0, 100.0]), size=shape)).to(dtype)
    kept = logits.clone()
    mean, deviation = random.normal(size=shape[1]), random.uniform(0.5, 3.0, size=shape[1])
    numbers = (torch.tensor(scale, dtype=torch.float64), *(torch.from_numpy(v).float() for v in (mean, deviation)))
    with plain_only() if plain else nullcontext():
        found = standardised_log_probabilities(logits, *numbers)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(logits, kept), "the input is left alone"
    np.testing.assert_allclose(found.double().numpy(), exact(logits, scale, mean, deviation), rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("plain", [True, False])
def test_impossible_and_enormous_logits_are_finite(plain: bool) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 1.0], [3e38, -3e38, 0.0], [-1e4, -1e4, -1e4 + 1]]).T[None]
    one = torch.ones(3)
    with plain_only() if plain else nullcontext():
        found = standardised_log_probabilities(logits.mT.contiguous(), torch.tensor(1.0).double(), 0 * one, one)
    assert found.isfinite().all()
    assert found.min() >= SMALLEST_LOG_PROBABILITY - 1e-4


def test_the_bits_do_not_depend_on_the_place_of_a_pixel() -> None:
    logits, one = 5 * torch.randn(1, 7, 1000, generator=torch.Generator().manual_seed(0)), torch.ones(7)
    scale = torch.tensor(0.7).double()
    whole = standardised_log_probabilities(logits, scale, 0.3 * one, 1.7 * one)
    for start, stop in ((0, 1), (3, 999), (257, 700)):
        part = standardised_log_probabilities(logits[..., start:stop], scale, 0.3 * one, 1.7 * one)
        assert torch.equal(part, whole[..., start:stop])
