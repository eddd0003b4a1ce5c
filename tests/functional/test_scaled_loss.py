"""The loss of scaled logits against cross-entropy and automatic differentiation, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from segcal.functional.scaled_loss import scaled_nll, summed_nll
from segcal.kernels.dispatch import plain_only


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


def test_two_classes_by_hand() -> None:
    """Logits 2 and 0 at T = 2: p = 1 / (1 + 1/e), NLL of class 1 is log(1 + e), and its slope (0 - 2p) / 4."""
    logits, labels = torch.tensor([[[[2.0]], [[0.0]]]]), torch.tensor([[[1]]])
    p = 1 / (1 + math.exp(-1))
    for plain in (False, True):
        if plain:
            with plain_only():
                nll, slope = scaled_nll(logits, labels, torch.tensor([[[[2.0]]]]))
        else:
            nll, slope = scaled_nll(logits, labels, torch.tensor([[[[2.0]]]]))
        assert nll.item() == pytest.approx(math.log(1 + math.e), rel=1e-6)
        assert slope.item() == pytest.approx(-2 * p / 4, rel=1e-6)


def test_extreme_logits_give_finite_losses() -> None:
    logits = torch.tensor([[1e30, -1e30, 0.0]]).view(1, 3, 1, 1)
    heat = torch.tensor([[[[0.05]]]]).requires_grad_()
    torch.autograd.backward(summed_nll(logits, torch.tensor([[[0]]]), heat))
    assert torch.isfinite(heat.grad).all()
