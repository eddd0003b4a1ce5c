"""Convolutions as products of lines, on any device: the results and gradients of PyTorch's convolution."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from segcal import create
from segcal.kernels.triton.rows import RowProducts
from support.engines import PLAIN
from support.scenes import simulated


@pytest.mark.parametrize("size", [(11, 9), (5, 30), (3, 4), (6, 7, 8), (1, 2, 3)])
@pytest.mark.parametrize("channels", [1, 4])
def test_results_and_gradients_are_those_of_a_convolution(size: tuple[int, ...], channels: int) -> None:
    generator = torch.Generator().manual_seed(len(size))
    values = torch.randn(2, channels, *size, generator=generator, dtype=torch.float64)
    weight = torch.randn(3, channels, *(5,) * len(size), generator=generator, dtype=torch.float64)
    bias, heed = torch.randn(3, generator=generator).double(), torch.randn(2, 3, *size, generator=generator).double()
    found = []
    for function in (RowProducts.apply, PLAIN.convolve):
        parameters = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
        result = function(values, *parameters)
        (result * heed).sum().backward()
        found.append((result.detach(), *(parameter.grad for parameter in parameters)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_one_line_worked_by_hand() -> None:
    """Weights of 1 along the line: every second of nine pixels, reflected at the ends."""
    values = torch.arange(6.0).expand(1, 1, 6, 6)
    weight = torch.zeros(1, 1, 5, 5)
    weight[0, 0, 2] = 1.0
    found = RowProducts.apply(values, weight, torch.tensor([0.5]))
    assert found[0, 0, 0].tolist() == [12.5, 13.5, 12.5, 13.5, 12.5, 13.5]


def test_training_gives_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = simulated(3, size=(12, 14), num_classes=3)

    def fit() -> Any:
        return create("lts", 3, image_channels=1).fit(cases, epochs=3, learning_rate=1e-3, batch_size=2, device="cpu")

    plain = fit()
    monkeypatch.setattr("segcal.functional.tree.convolve", RowProducts.apply)
    for name, value in fit().state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-4, atol=1e-6)
