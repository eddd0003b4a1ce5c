"""Which kernels check the logits that they read, with a stub in place of those of a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from segcal.functional.division import found_nonfinite, kernels_check_finite, scaled_probabilities

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
