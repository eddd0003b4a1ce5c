"""The tree while it is trained against automatic differentiation of the plain form, and by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from segcal.calibrators.shared.tree import TemperatureTree
from segcal.functional.tree import mixed, tree_root
from segcal.functional.tree_training import trained_root, weight_gradient
from segcal.kernels.dispatch import OPERATIONS


def random_tree(classes: int, dims: int, channels: int) -> TemperatureTree:
    tree = TemperatureTree(classes, dims, channels)
    with torch.no_grad():
        for parameter in tree.parameters():
            parameter.copy_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return tree


@pytest.mark.parametrize("channels", [0, 2])
@pytest.mark.parametrize(("classes", "size"), [(4, (13, 17)), (3, (3, 20)), (3, (7, 9, 8)), (17, (5, 8, 6))])
def test_roots_and_gradients_are_those_of_the_plain_form(classes: int, size: tuple[int, ...], channels: int) -> None:
    """Images narrower than the filter are replicated, not reflected."""
    generator = torch.Generator().manual_seed(0)
    inputs, target = (torch.randn(2, n, *size, generator=generator) for n in (classes, 1))
    image = torch.rand(2, channels, *size, generator=generator) if channels else None
    gradients, roots = [], []
    for function in (trained_root, OPERATIONS["tree.tree_root"].plain):
        tree = random_tree(classes, len(size), channels)
        convolutions = [None if c is None else (c.weight, c.bias) for c in (tree.of_logits, tree.of_image)]
        root = function(inputs, image, convolutions[0], convolutions[1], 1.0, least=1e-8)
        torch.autograd.backward((root * target).sum())
        gradients.append([parameter.grad for parameter in tree.parameters()])
        roots.append(root.detach())
    torch.testing.assert_close(*roots, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_the_module_trains_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    called = list[int]()

    def counted(*arguments: Any, **settings: Any) -> torch.Tensor:
        called.append(1)
        return tree_root(*arguments, **settings)

    monkeypatch.setattr("segcal.calibrators.shared.tree.trained_root", counted)
    tree = random_tree(3, 2, 0)
    tree(torch.zeros(1, 3, 8, 8))
    assert called == [1]
    with torch.no_grad():
        tree(torch.zeros(1, 3, 8, 8))
    tree(torch.zeros(1, 3, 8, 8, requires_grad=True))
    assert called == [1]


def test_one_gradient_by_hand() -> None:
    """One gradient at the origin: every weight is given the padded value that its tap reads."""
    padded = torch.arange(1 * 2 * 10 * 11, dtype=torch.float32).view(1, 2, 10, 11)
    gradient = torch.zeros(1, 3, 2, 3)
    gradient[0, 1, 0, 0] = 2.0
    found = weight_gradient(padded, gradient)
    assert found.shape == (3, 2, 5, 5)
    assert torch.equal(found[1], 2 * padded[0, :, 0:9:2, 0:9:2])
    assert not found[0].any()
    assert not found[2].any()


def test_one_pixel_mixed_by_hand() -> None:
    """All gates at 1/2: the root is the mean of the four leaves, and half of it with an image leaf of 0."""
    nodes = torch.tensor([1.0, 2.0, 3.0, 6.0, 0, 0, 0, 0]).view(1, 8, 1, 1)
    assert float(mixed(nodes[:, :7], None, 0.5, None)) == pytest.approx(3.5)
    assert float(mixed(nodes, torch.zeros(1, 1, 1, 1), 0.0, None)) == pytest.approx(1.5)
    assert float(mixed(-nodes[:, :7], None, 0.0, 1e-8)) == pytest.approx(1e-8)
    gate = nodes[:, :7].clone()
    gate[0, 6] = math.log(3)
    assert float(mixed(gate, None, 0.0, None)) == pytest.approx(0.75 * 1.5 + 0.25 * 4.5)
