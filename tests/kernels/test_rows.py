"""Convolutions as products of lines, on any device: the results and gradients of PyTorch's convolution."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from segcal import create
from segcal.functional.tree import convolution, padded
from segcal.kernels.triton.rows import RowProducts, plane_products
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


@pytest.mark.parametrize("size", [(6, 7, 8), (5, 5, 9)])
@pytest.mark.parametrize(("channels", "outputs"), [(1, 1), (4, 7), (9, 8)])
def test_products_of_planes_add_up_to_a_convolution(size: tuple[int, ...], channels: int, outputs: int) -> None:
    generator = torch.Generator().manual_seed(channels)
    values = torch.randn(2, channels, *size, generator=generator, dtype=torch.float64)
    weight = torch.randn(outputs, channels, 5, 5, 5, generator=generator, dtype=torch.float64)
    wide, depth = padded(values, torch.float64), size[0]
    parts = plane_products(wide, weight).unflatten(0, (2, depth + 8))
    with torch.autocast("cpu"):
        assert plane_products(wide.float(), weight.float()).dtype == torch.float32
    assert parts.is_contiguous()
    assert parts.shape == (2, depth + 8, *size[1:], 5, 8)
    found = sum(parts[:, 2 * k : 2 * k + depth, :, :, k] for k in range(5)).movedim(-1, 1)
    torch.testing.assert_close(found[:, :outputs], convolution(wide, weight, torch.zeros(outputs).double()))
    assert not found[:, outputs:].any()


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
