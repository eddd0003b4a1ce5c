"""Focal loss and MMCE against slow loops, by hand, and in the training loop."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from segcal.losses import FocalLoss, MMCELoss, PixelLoss, focal, mmce
from segcal.types import InputError

SIZES = {2: (6, 5), 3: (4, 3, 5)}


def batch(dims: int = 2, classes: int = 4, scale: float = 2.0, ignored: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(dims)
    logits = scale * torch.randn(2, classes, *SIZES[dims], generator=random, dtype=torch.float64)
    labels = torch.randint(classes, (2, *SIZES[dims]), generator=random)
    for k, label in enumerate(ignored):
        labels[..., k] = label
    return logits, labels


def pixels_of(logits: Tensor, labels: Tensor, ignored: tuple[int, ...] = ()) -> list[tuple[np.ndarray, int]]:
    """Probabilities and label of every labelled pixel, one by one."""
    found = []
    for at in np.ndindex(*labels.shape):
        label = int(labels[at])
        if label not in ignored:
            powers = np.exp(logits[(at[0], slice(None), *at[1:])].detach().double().numpy())
            found.append((powers / powers.sum(), label))
    return found


def slow_focal(logits: Tensor, labels: Tensor, gamma: Any, ignored: tuple[int, ...] = ()) -> float:
    losses = []
    for probs, label in pixels_of(logits, labels, ignored):
        p = probs[label]
        power = (5 if p < 0.2 else 3) if gamma == "flsd-53" else gamma
        losses.append(-((1 - p) ** power) * math.log(p))
    return sum(losses) / len(losses)


def slow_mmce(confidence: list[float], right: list[bool], weighted: bool) -> float:
    """The three double sums of Kumar et al., pair by pair."""
    pairs = [(r, c) for r, c in zip(confidence, right, strict=True)]
    hits, misses = sum(right), len(right) - sum(right)
    if weighted and not (hits and misses):
        return 0.0
    total = 0.0
    for r, c in pairs:
        for s, d in pairs:
            kernel = math.exp(-abs(r - s) / 0.4)
            if not weighted:
                total += (c - r) * (d - s) * kernel / len(pairs) ** 2
            elif c and d:
                total += (1 - r) * (1 - s) * kernel / hits**2
            elif not c and not d:
                total += r * s * kernel / misses**2
            elif c:
                total -= 2 * (1 - r) * s * kernel / (hits * misses)
    return math.sqrt(max(total, 0.0))


def slow_joint(logits: Tensor, labels: Tensor, strength: float, weighted: bool, ignored: tuple[int, ...] = ()) -> float:
    pixels = pixels_of(logits, labels, ignored)
    entropy = sum(-math.log(probs[label]) for probs, label in pixels) / len(pixels)
    confidence, right = [p.max() for p, _ in pixels], [bool(p.argmax() == label) for p, label in pixels]
    return entropy + strength * slow_mmce(confidence, right, weighted)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 3.0, "flsd-53"])
@pytest.mark.parametrize("ignored", [(), (7,), (7, 2)], ids=str)
@pytest.mark.parametrize("dims", [2, 3])
def test_focal_is_what_the_loop_gives(dims: int, ignored: tuple[int, ...], gamma: Any) -> None:
    logits, labels = batch(dims, ignored=ignored)
    found = FocalLoss(gamma, ignore_index=ignored or None)(logits, labels)
    assert float(found) == pytest.approx(slow_focal(logits, labels, gamma, ignored), rel=1e-12)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("ignored", [(), (7,), (7, 2)], ids=str)
@pytest.mark.parametrize("dims", [2, 3])
def test_mmce_is_what_the_loop_gives(dims: int, ignored: tuple[int, ...], weighted: bool) -> None:
    logits, labels = batch(dims, ignored=ignored)
    found = MMCELoss(weighted=weighted, ignore_index=ignored or None)(logits, labels)
    assert float(found) == pytest.approx(slow_joint(logits, labels, 2.0, weighted, ignored), rel=1e-12)


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]) | st.floats(0, 1), st.booleans()), min_size=1),
    st.booleans(),
)
def test_running_sums_are_the_sums_over_pairs(pixels: list[tuple[float, bool]], weighted: bool) -> None:
    """Also with ties, and with pixels all right or all wrong."""
    confidence, right = [r for r, _ in pixels], [c for _, c in pixels]
    found = mmce(torch.tensor(confidence, dtype=torch.float64), torch.tensor(right), weighted=weighted)
    assert float(found) == pytest.approx(slow_mmce(confidence, right, weighted), abs=2e-6)


def test_mmce_by_hand() -> None:
    one = torch.tensor([0.75], dtype=torch.float64)
    assert float(mmce(one, torch.tensor([True]), weighted=False)) == pytest.approx(0.25)
    two, right = torch.tensor([0.6, 0.6], dtype=torch.float64), torch.tensor([True, False])
    # one kernel of 1 for all pairs: the forms are |mean of (right - r)| and |(1 - r) - r|
    assert float(mmce(two, right, weighted=False)) == pytest.approx(0.1)
    assert float(mmce(two, right, weighted=True)) == pytest.approx(0.2)


def test_the_cited_code_takes_no_root() -> None:
    """With pairs one by one, as it sums them, and its lambda of 1."""
    torch.manual_seed(0)
    logits, labels = 3 * torch.randn(1, 3, 5, 4), torch.randint(3, (1, 5, 4))
    probs, predicted = logits.softmax(1).max(1)
    r, a = probs.flatten(), (predicted == labels).flatten().float() - probs.flatten()
    square = sum(a[i] * a[j] * torch.exp(-(r[i] - r[j]).abs() / 0.4) for i in range(20) for j in range(20)) / 20**2
    entropy = nn.functional.cross_entropy(logits, labels)
    assert float(MMCELoss(1.0, squared=True)(logits, labels)) == pytest.approx(float(entropy + square), abs=1e-6)
    assert float(mmce(r, predicted.flatten() == labels.flatten())) == pytest.approx(float(square) ** 0.5, abs=1e-6)


def test_the_schedule_changes_at_a_probability_of_one_fifth() -> None:
    p = torch.tensor([0.1999, 0.2001, 0.9], dtype=torch.float64)
    expected = [-(0.8001**5) * math.log(0.1999), -(0.7999**3) * math.log(0.2001), -(0.1**3) * math.log(0.9)]
    assert focal(p.log(), "flsd-53").tolist() == pytest.approx(expected)


LOSSES = [FocalLoss(), FocalLoss(0.5), FocalLoss("flsd-53"), MMCELoss(), MMCELoss(weighted=True)]


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_gradients(loss: PixelLoss, dims: int) -> None:
    logits, labels = batch(dims, ignored=(7,))
    loss.ignore_index = 7
    try:
        small = logits[:1].clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda z: loss(z, labels[:1]), (small,))
        loss(small, labels[:1]).backward()
        assert small.grad is not None
        assert (small.grad[..., 0] == 0).all(), "an ignored pixel has no gradient"
        assert (small.grad[..., 1:] != 0).any()
    finally:
        loss.ignore_index = None


@pytest.mark.parametrize("loss", [FocalLoss(), FocalLoss("flsd-53"), MMCELoss(), MMCELoss(weighted=True)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(loss: PixelLoss, dtype: torch.dtype) -> None:
    logits, labels = batch()
    half = logits.to(dtype).requires_grad_()
    found = loss(half, labels)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(float(loss(half.detach().double(), labels)), rel=1e-5)
    found.backward()
    assert half.grad is not None
    assert half.grad.dtype == dtype


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_extreme_logits_give_finite_losses_and_gradients(loss: PixelLoss, dtype: torch.dtype) -> None:
    labels = torch.arange(3).repeat(4)[None]
    sure = 1e4 * nn.functional.one_hot(labels, 3).movedim(-1, 1)
    for logits in (sure, -sure, 0 * sure):
        scores = logits.to(dtype).requires_grad_()
        found = loss(scores, labels)
        found.backward()
        assert found.isfinite()
        assert scores.grad is not None
        assert scores.grad.isfinite().all()


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_nothing_labelled_is_no_loss(loss: PixelLoss) -> None:
    logits, labels = batch()
    kind = deepcopy(loss)
    kind.ignore_index = 9
    scores = logits.clone().requires_grad_()
    total, weight = kind.sum_and_weight(scores, torch.full_like(labels, 9))
    assert (total.item(), int(weight)) == (0.0, 0)
    found = kind(scores, torch.full_like(labels, 9))
    found.backward()
    assert found.item() == 0.0
    assert scores.grad is not None
    assert (scores.grad == 0).all()


def test_sums_of_parts_make_the_whole() -> None:
    logits, labels = batch(ignored=(7,))
    loss = FocalLoss(ignore_index=7)
    parts = [loss.sum_and_weight(logits[k : k + 1], labels[k : k + 1]) for k in (0, 1)]
    total, weight = (sum(values) for values in zip(*parts, strict=True))
    assert int(weight) == int((labels != 7).sum())
    assert float(total / weight) == pytest.approx(float(loss(logits, labels)))


def test_a_sample_is_of_the_size_asked_for_and_seeded() -> None:
    logits, labels = batch()
    everything = float(MMCELoss(pixels=60)(logits, labels))
    assert everything == float(MMCELoss()(logits, labels))
    seeds = [float(MMCELoss(pixels=9, seed=seed).eval()(logits, labels)) for seed in (0, 0, 1)]
    assert seeds[0] == seeds[1]
    assert len({*seeds, everything}) == 3
    sampled = MMCELoss(pixels=9)
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found.append([float(sampled(logits, labels)) for _ in range(2)])
    assert found[0] == found[1], "training draws from PyTorch's generator"
    assert found[0][0] != found[0][1], "and differs at every step"
    one = MMCELoss(pixels=1, weighted=False).eval()
    gaps = {round(abs(bool(p.argmax() == label) - p.max()), 9) for p, label in pixels_of(logits, labels)}
    entropy = float(nn.functional.cross_entropy(logits, labels))
    assert round((float(one(logits, labels)) - entropy) / 2, 9) in gaps, "of one pixel it is that pixel's gap"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FocalLoss(-1.0), "gamma must be finite and at least 0, got -1.0"),
        (lambda: FocalLoss(math.nan), "gamma must be finite"),
        (lambda: FocalLoss("flsd"), "gamma must be a number or 'flsd-53', got 'flsd'"),  # type: ignore[arg-type]
        (lambda: MMCELoss(-2.0), "strength must be finite and at least 0, got -2.0"),
        (lambda: MMCELoss(pixels=0), "pixels must be at least 1, or None for all, got 0"),
        (lambda: FocalLoss()(torch.zeros(1, 3, 2, 2), torch.zeros(1, 2, 3).long()), "labels must have shape"),
        (lambda: FocalLoss()(torch.zeros(1, 3, 2), torch.tensor([[0, 3]])), r"labels must be in 0\.\.2, got 3"),
        (lambda: MMCELoss(ignore_index=(7, 8))(torch.zeros(1, 3, 2), torch.tensor([[8, 9]])), "got 9"),
    ],
)
def test_what_cannot_be_is_refused(build: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()
