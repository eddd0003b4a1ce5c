"""Logits divided by temperatures: half precision, which kernels check logits, log-probabilities and the NLL."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

from segcal.functional.division import (
    found_nonfinite,
    kernels_check_finite,
    scaled_logits,
    scaled_nll,
    scaled_probabilities,
    standardised_log_probabilities,
    summed_nll,
)
from segcal.kernels.constants import SMALLEST_LOG_PROBABILITY
from segcal.kernels.dispatch import plain_only

LOGITS = torch.zeros(1, 2, 3)
Engine = Callable[[], AbstractContextManager[None]]


def test_no_kernel_of_the_cpu_notes_anything() -> None:
    assert kernels_check_finite(LOGITS, LOGITS) is False
    assert found_nonfinite(LOGITS) is False


@pytest.mark.parametrize("noted", [False, True])
def test_kernels_that_note_are_asked(noted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[torch.Tensor, ...]] = []

    def answer(*tensors: torch.Tensor) -> int:
        asked.append(tensors)
        return int(noted)

    notes = SimpleNamespace(checks_finite=answer, found_nonfinite=answer)
    monkeypatch.setattr("segcal.functional.division.checking_kernels", lambda *_: notes)
    image = torch.ones(1, 1, 3)
    assert kernels_check_finite(LOGITS, image) is noted
    assert found_nonfinite(LOGITS) is noted
    assert [[id(tensor) for tensor in tensors] for tensors in asked] == [[id(LOGITS), id(image)], [id(LOGITS)]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quotients_beyond_the_largest_number_do_not_tie(dtype: torch.dtype) -> None:
    """Plain PyTorch computes with gradients and in exported graphs, and must find what the kernels do."""
    largest = torch.finfo(dtype).max
    logits = torch.tensor([[0.9, 0.6, -0.9]], dtype=dtype).view(1, 3, 1, 1) * largest
    temperature = torch.full((1, 1, 1, 1), 0.5, dtype=dtype)
    expected = torch.tensor([1.0, 0.0, 0.0], dtype=dtype)
    for scores in (logits, logits.clone().requires_grad_()):
        torch.testing.assert_close(scaled_probabilities(scores, temperature).detach().flatten(), expected)


HALVES = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize(("classes", "size"), [(5, (300, 7)), (2, (4, 5, 6)), (1, (9,))])
@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_half_precision_is_rounded_once_and_keeps_labels(
    kind: torch.dtype, classes: int, size: tuple[int, ...], scale: float, rng: np.random.Generator
) -> None:
    """Also where the temperature is so high that rounding makes classes equal."""
    logits = torch.from_numpy(scale * rng.normal(size=(2, classes, *size))).to(kind)
    heat = torch.from_numpy(10 ** rng.uniform(-1.3, 2, (2, 1, *size))).float()
    exact, unit = logits.double() / heat.double(), torch.finfo(kind).eps  # one more where a rival is moved
    for found, expected in (
        (scaled_logits(logits, heat), exact.clamp(-torch.finfo(kind).max, torch.finfo(kind).max)),
        (scaled_probabilities(logits, heat), torch.softmax(exact, dim=1)),
    ):
        assert found.dtype == kind
        assert torch.equal(found.float().max(dim=1).indices, logits.float().max(dim=1).indices)
        torch.testing.assert_close(found.double(), expected, rtol=2 * unit, atol=1e-7)


@pytest.mark.parametrize("kind", HALVES)
def test_a_tie_of_half_precision_by_hand(kind: torch.dtype) -> None:
    """Two neighbouring numbers, so far divided that both are the same: the rival takes the next number below."""
    eps = torch.finfo(kind).eps
    logits = torch.tensor([[[1.0, -1.0], [1.0 + eps, -1.0 - eps]]]).to(kind)
    found = scaled_logits(logits, torch.full((1, 1, 2), 64 / 3))
    top = torch.tensor(3 / 64 * (1 + eps)).to(kind)
    assert found[0, 1, 0] == top
    assert found[0, 0, 0] < top
    assert found[0, 0, 1] > found[0, 1, 1]


# ---------------------------------------------------------------------------------------------------------------------
# the NLL of scaled logits, against cross-entropy and automatic differentiation


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(7, 9), (5, 6, 4)])
def test_value_and_gradient_are_those_of_cross_entropy(
    rng: np.random.Generator, dtype: torch.dtype, size: tuple[int, ...]
) -> None:
    logits = torch.from_numpy(rng.normal(scale=6, size=(2, 5, *size))).to(dtype)
    labels = torch.from_numpy(rng.integers(-1, 5, (2, *size)))
    heat = torch.from_numpy(rng.uniform(0.2, 5, (2, 1, *size))).to(dtype)
    ours, theirs = heat.clone().requires_grad_(), heat.clone().requires_grad_()
    loss = summed_nll(logits, labels, ours)
    expected = F.cross_entropy(logits / theirs, labels, ignore_index=-1, reduction="sum")
    torch.autograd.backward(3 * loss)
    torch.autograd.backward(3 * expected)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)
    assert not ours.grad[:, 0][labels < 0].any()


@pytest.mark.parametrize("engine", [plain_only, nullcontext])
def test_two_classes_by_hand(engine: Engine) -> None:
    """Logits 2 and 0 at T = 2: p = 1 / (1 + 1/e), NLL of class 1 is log(1 + e), and its slope (0 - 2p) / 4."""
    with engine():
        logits, labels = torch.tensor([[[[2.0]], [[0.0]]]]), torch.tensor([[[1]]])
        nll, slope = scaled_nll(logits, labels, torch.tensor([[[[2.0]]]]))
    assert nll.item() == pytest.approx(math.log(1 + math.e), rel=1e-6)
    assert slope.item() == pytest.approx(-2 / (1 + math.exp(-1)) / 4, rel=1e-6)


def test_extreme_logits_give_finite_losses() -> None:
    logits = torch.tensor([[1e30, -1e30, 0.0]]).view(1, 3, 1, 1)
    heat = torch.tensor([[[[0.05]]]]).requires_grad_()
    torch.autograd.backward(summed_nll(logits, torch.tensor([[[0]]]), heat))
    assert torch.isfinite(heat.grad).all()


# ---------------------------------------------------------------------------------------------------------------------
# standardised log-probabilities, against float64


def exact_standardised(logits: torch.Tensor, scale: float, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
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
    np.testing.assert_allclose(
        found.double().numpy(), exact_standardised(logits, scale, mean, deviation), rtol=3e-6, atol=3e-6
    )


@pytest.mark.parametrize("plain", [True, False])
def test_impossible_and_enormous_logits_are_finite(plain: bool) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 1.0], [3e38, -3e38, 0.0], [-1e4, -1e4, -1e4 + 1]]).T[None]
    one = torch.ones(3)
    with plain_only() if plain else nullcontext():
        found = standardised_log_probabilities(logits.mT.contiguous(), torch.tensor(1.0).double(), 0 * one, one)
    assert found.isfinite().all()
    assert found.min() >= SMALLEST_LOG_PROBABILITY - 1e-4
