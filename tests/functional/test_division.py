"""Logits divided in half precision, and which kernels check the logits that they read, with a stub for a GPU's."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from segcal.functional.division import found_nonfinite, kernels_check_finite, scaled_logits, scaled_probabilities

LOGITS = torch.zeros(1, 2, 3)


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
    for given in (logits, logits.clone().requires_grad_()):
        torch.testing.assert_close(scaled_probabilities(given, temperature).detach().flatten(), expected)


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
