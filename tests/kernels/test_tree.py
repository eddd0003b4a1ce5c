"""The compiled tree and the compiled division: against the paper's nine convolutions and plain PyTorch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from segcal.calibrators.shared.tree import TemperatureTree
from segcal.functional import division
from segcal.functional.division import NotFiniteError
from segcal.functional.probability import keep_labels
from segcal.kernels.dispatch import DECLINED
from support.engines import CPU
from support.nine_convolutions import NineConvolutions

SIZES = {
    2: [(5, 5), (9, 13), (16, 16), (37, 41), (7, 700), (70, 6)],
    3: [(5, 5, 5), (9, 8, 7), (16, 17, 18), (6, 9, 300), (33, 7, 5)],
}
PRECISION = {2: 2e-6, 3: 2e-5}
"""Of the compiled tree, as a share of the sum of absolute products: see `segcal.kernels.cpu.tree`."""


def tree_of(classes: int, dims: int, channels: int, seed: int = 0) -> TemperatureTree:
    generator = torch.Generator().manual_seed(seed)
    tree = TemperatureTree(classes, dims, channels).requires_grad_(False)
    for parameter in tree.parameters():
        parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    return tree


def inputs(classes: int, channels: int, size: tuple[int, ...], batch: int = 1) -> tuple[Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(1)
    logits = 5 * torch.randn(batch, classes, *size, generator=generator)
    return logits, torch.rand(batch, channels, *size, generator=generator) if channels else None


def exact(tree: TemperatureTree, classes: int, channels: int, logits: Tensor, image: Tensor | None) -> Tensor:
    """The paper's form in float64."""
    reference = NineConvolutions(classes, logits.ndim - 2, channels).double()
    reference.take_weights(tree.of_logits, tree.of_image)
    return reference(logits.double(), None if image is None else image.double()).detach()


def products(tree: TemperatureTree, logits: Tensor) -> float:
    """A bound of the sum of absolute products of any node at any pixel."""
    weight = tree.of_logits.weight
    return float(weight.abs().flatten(1).sum(1).max() * logits.abs().max())


@pytest.mark.parametrize(("dims", "size"), [(dims, size) for dims, sizes in SIZES.items() for size in sizes])
@pytest.mark.parametrize(("classes", "channels"), [(1, 0), (3, 1), (11, 3), (19, 9)])
def test_the_compiled_tree_is_the_papers(dims: int, size: tuple[int, ...], classes: int, channels: int) -> None:
    tree, (logits, image) = tree_of(classes, dims, channels), inputs(classes, channels, size, batch=2)
    expected = exact(tree, classes, channels, logits, image)
    found = tree(logits, image)
    assert found.dtype == torch.float32
    assert float((found - expected).abs().max()) <= PRECISION[dims] * products(tree, logits)


@pytest.mark.parametrize("size", [(1, 1), (3, 6), (1, 700), (4, 9), (2, 3, 4), (5, 4, 2)])
def test_images_too_small_to_mirror_are_continued_by_their_edge(size: tuple[int, ...]) -> None:
    tree, (logits, image) = tree_of(3, len(size), 1), inputs(3, 1, size)
    expected = tree.double()(logits.double(), None if image is None else image.double())
    found = tree.float()(logits, image)
    assert float((found - expected).abs().max()) <= PRECISION[len(size)] * products(tree, logits)


def test_logits_that_its_sums_cannot_hold_are_left_to_plain_convolutions() -> None:
    tree = tree_of(2, 2, 0)
    for parameter in tree.parameters():
        parameter.mul_(1e-3)
    logits = torch.full((1, 2, 20, 20), 1e38)
    logits[:, :, ::2] = -1e38
    assert tree(logits).isfinite().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["scaled_probabilities", "scaled_logits"])
def test_division_refuses_logits_that_are_not_finite(name: str, value: float) -> None:
    """Wherever they are: in the first and last class, block and thread."""
    logits, heat = torch.zeros(2, 3, 70, 91), torch.ones(2, 1, 70, 91)
    for place in ((0, 0, 0, 0), (1, 2, 69, 90), (1, 1, 33, 20)):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            spoilt = logits.to(dtype)
            spoilt[place] = value
            if dtype == torch.float32:
                assert getattr(CPU, name)(spoilt, heat) is DECLINED
            with pytest.raises(NotFiniteError, match="logits must be finite"):
                getattr(division, name)(spoilt, heat.to(dtype))


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.05, 1.0, 100.0]), st.sampled_from([1e-6, 1.0, 1e4, 3e38]))
def test_division_keeps_every_label(seed: int, temperature: float, size: float) -> None:
    """Logits that are next to each other, equal, tiny and huge."""
    random = np.random.default_rng(seed)
    base = random.choice([0.0, 1.0, -1.0], size=(1, 1, 300)).astype(np.float32) * np.float32(size)
    logits = np.nextafter(base, np.float32(np.inf) * random.choice([-1, 1], size=(1, 4, 300)).astype(np.float32))
    logits = np.clip(logits, -3e38, 3e38).astype(np.float32)
    logits[:, :, ::5] = np.clip(random.normal(size=(1, 4, 60)) * size / 3, -3e38, 3e38)
    raw, heat = torch.from_numpy(logits), torch.full((1, 1, 300), temperature)
    for scored in (CPU.scaled_logits(raw, heat), CPU.scaled_probabilities(raw, heat)):
        assert scored.isfinite().all()
        assert torch.equal(scored.argmax(1), raw.argmax(1))
        assert torch.equal(keep_labels(scored, raw), scored)


def test_equal_largest_logits_stay_equal() -> None:
    logits = torch.tensor([[2.0, 5.0, 5.0]]).unsqueeze(-1)
    found = CPU.scaled_probabilities(logits, torch.ones(1, 1, 1))
    assert found[0, 1] == found[0, 2]
    assert found.argmax(1).item() == 1
