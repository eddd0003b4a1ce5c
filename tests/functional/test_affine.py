"""Sums of the affine fits, their curvature, the sample and the search."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from segcal.calibrators.shared.survey import Sampler
from segcal.functional.affine import affine_curvature, affine_map, affine_sums
from segcal.functional.draws import Sample
from segcal.functional.minimise import Block, Preconditioner, minimise
from segcal.kernels.cpu import affine as affine_kernels
from support.engines import CPU
from support.kernel_inputs import Scene

CLOSE = {"rtol": 1e-11, "atol": 1e-10}


def scene(classes: int, n: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """A row of logits and labels, and the importance of each class."""
    row = Scene((n,), dtype, classes)
    return row.laid(row.moderate[0]), row.flat[1], torch.linspace(1, 3, classes, dtype=torch.float64)


@pytest.mark.parametrize("full", [False, True])
def test_the_gradient_is_that_of_autograd(full: bool) -> None:
    logits, labels, importance = scene(4, 300, torch.float64)
    weights = torch.randn(4, 4 if full else 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    bias = torch.linspace(-1, 1, 4, dtype=torch.float64)
    leaves = [weights.clone().requires_grad_(), bias.clone().requires_grad_()]
    keep = labels >= 0
    scores = affine_map(logits.T[keep], leaves[0], leaves[1], of_log=False)
    each = torch.nn.functional.cross_entropy(scores, labels[keep], reduction="none")
    loss = (importance[labels[keep]] * each).sum()
    loss.backward()
    found = affine_sums(logits, labels, importance[labels], weights, bias, of_log=False)
    expected = torch.cat(
        [loss.detach().reshape(1), *(leaf.grad.reshape(-1) for leaf in leaves if leaf.grad is not None)]
    )
    torch.testing.assert_close(found, expected, **CLOSE)


def test_many_sums_are_added_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels, importance = scene(3, 3000)
    settings = (importance[labels], torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))
    whole = CPU.affine_sums(logits, labels, *settings, of_log=True)
    monkeypatch.setattr(affine_kernels, "_ROOM", 1)
    torch.testing.assert_close(CPU.affine_sums(logits, labels, *settings, of_log=True), whole, **CLOSE)


def sample_of(classes: int, n: int) -> Sample:
    logits, labels, importance = scene(classes, n, torch.float64)
    order = labels[labels >= 0].argsort(stable=True)
    chosen = labels[labels >= 0][order]
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(chosen, minlength=classes).cumsum(0)])
    return Sample(logits[:, labels >= 0][:, order] / 5, chosen, importance, starts)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_the_curvature_is_the_slope_of_the_gradient(full: bool, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.functional.affine._WHOLE", 1000 if whole else 0)
    monkeypatch.setattr("segcal.functional.affine._ROOM", 64)
    sample = sample_of(3, 200)
    width = 3 if full else 1
    size = 3 * (width + 1)
    point = torch.linspace(-1, 1, size, dtype=torch.float64)
    penalty = np.linspace(0, 1, size)
    importance = sample.importance[sample.labels]
    total = float(importance.sum())

    def gradient(theta: Tensor) -> np.ndarray:
        weights, bias = theta[: 3 * width].view(3, width), theta[3 * width :]
        found = affine_sums(sample.logits, sample.labels, importance, weights, bias, of_log=True)
        return found[1:].numpy() / total + 2 * penalty * theta.numpy()

    steps = 1e-6 * torch.eye(size, dtype=torch.float64)
    expected = np.stack([(gradient(point + step) - gradient(point - step)) / 2e-6 for step in steps])
    weights, bias = point[: 3 * width].view(3, width), point[3 * width :]
    blocks = affine_curvature(sample, weights, bias, penalty, of_log=True)
    assert len(blocks) == (1 if whole else 3)
    assert sorted(np.concatenate([block.index for block in blocks])) == list(range(size))
    for block in blocks:
        np.testing.assert_allclose(block.curvature, expected[np.ix_(block.index, block.index)], atol=1e-7)


def test_a_sample_keeps_rare_classes_whole_and_weighs_the_rest() -> None:
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.choice([-1, 0, 1, 2], size=50_000, p=[0.1, 0.8, 0.099, 0.001]))
    logits = torch.from_numpy(rng.normal(size=(3, 50_000)))
    sampler = Sampler(3, pixels=3000)
    for part in torch.arange(50_000).split(7_001):  # type: ignore[no-untyped-call]
        sampler.add(logits[:, part], labels[part])
    sample = sampler.sample()
    counts = torch.bincount(labels[labels >= 0], minlength=3)
    kept = torch.bincount(sample.labels, minlength=3)
    assert kept[2] == counts[2]
    assert ((kept[:2] > 350) & (kept[:2] <= 1000)).all()
    torch.testing.assert_close(sample.importance * kept, counts.double())
    assert sample.starts.tolist() == [0, *kept.cumsum(0).tolist()]
    assert (sample.labels.diff() >= 0).all()
    # a fair draw: the mean of each class is that of the stream, within four standard errors
    for c in range(3):
        mine, theirs = sample.logits[:, sample.labels == c].mean(1), logits[:, labels == c].mean(1)
        assert (mine - theirs).abs().max() < 4 / float(kept[c]) ** 0.5


def test_a_sample_does_not_depend_on_how_the_stream_is_cut() -> None:
    logits, labels, _ = scene(3, 3000)
    samples = []
    for step in (3000, 100):
        sampler = Sampler(3, pixels=300)
        for start in range(0, 3000, step):
            sampler.add(logits[:, start : start + step], labels[start : start + step])
        samples.append(sampler.sample())
    for one, other in zip(*samples, strict=True):
        assert torch.equal(one, other)


def test_few_evaluations_lead_to_the_minimum_of_a_long_valley() -> None:
    """A quadratic with curvatures from 1 to 1e6: one Newton step, where the curvature is known."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    curvature = turn @ np.diag(np.logspace(0, 6, 8)) @ turn.T
    target = rng.normal(size=8)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        slope = curvature @ (x - target)
        return float(slope @ (x - target) / 2), slope

    found = minimise(objective, np.zeros(8), Preconditioner([Block(np.arange(8), curvature)]), evaluations=20)
    assert found.converged
    assert found.evaluations <= 4
    np.testing.assert_allclose(found.point, target, atol=1e-3)
    again = minimise(objective, target, Preconditioner([Block(np.arange(8), curvature)]), evaluations=20)
    assert again.evaluations == 1
    stopped = minimise(objective, np.zeros(8), Preconditioner([Block(np.arange(8), np.eye(8))]), evaluations=3)
    assert not stopped.converged


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_the_map_of_a_pixel_has_the_same_bits_everywhere(classes: int, set_threads, rng: np.random.Generator) -> None:  # type: ignore[no-untyped-def]
    """They do not depend on the other pixels, on the place in memory, or on the number of threads."""
    x = torch.from_numpy(rng.normal(size=(1, classes, 5000)).astype(np.float32))
    weights, bias = torch.from_numpy(rng.normal(size=(classes, classes))), torch.from_numpy(rng.normal(size=classes))
    set_threads(1)
    whole = affine_map(x, weights, bias, of_log=False)
    for start, stop in ((0, 1), (1, 40), (3, 2500), (4999, 5000)):
        assert torch.equal(affine_map(x[..., start:stop], weights, bias, of_log=False), whole[..., start:stop])
    set_threads(2)
    assert torch.equal(affine_map(x, weights, bias, of_log=False), whole)
    order = torch.from_numpy(rng.permutation(5000))
    assert torch.equal(affine_map(x[..., order], weights, bias, of_log=False), whole[..., order])


def test_the_map_adds_products_in_the_order_of_the_classes() -> None:
    """Large products cancel before the small one is added, which any other order would lose."""
    x = torch.tensor([[1e8, 1e8, 1.0]]).view(1, 3, 1)
    weights = torch.tensor([[1.0, -1.0, 1.0], [0.0, 0.0, 2.0], [1.0, 0.0, 0.0]]).double()
    found = affine_map(x, weights, torch.zeros(3).double(), of_log=False)
    assert found.flatten().tolist() == [1.0, 2.0, 1e8]
