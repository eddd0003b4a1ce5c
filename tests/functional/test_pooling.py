"""Linear pooling: the weights of greatest likelihood, and labels that are kept in every precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from segcal.functional.pooling import lifted, mixture_weights, pooled_logits

ONE = torch.ones((), dtype=torch.float64)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def truth_of(members: int = 4, pixels: int = 500, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).beta(2, 1, size=(members, pixels)) ** np.arange(1, members + 1)[:, np.newaxis]


@pytest.mark.parametrize("strength", [1e-6, 0.01, 0.3])
def test_weights_are_those_of_expectation_maximisation(strength: float) -> None:
    """EM with `strength / M` pseudo-counts for each member: slow, and with the same unique optimum."""
    truth = truth_of()
    weights = np.full(len(truth), 1 / len(truth))
    for _ in range(20_000):
        shares = weights[:, np.newaxis] * truth
        weights = (shares / shares.sum(axis=0)).mean(axis=1) + strength / len(truth)
        weights /= weights.sum()
    np.testing.assert_allclose(mixture_weights(truth, strength), weights, atol=2e-5)


def test_weights_follow_the_order_of_the_members_and_not_that_of_the_pixels() -> None:
    truth = truth_of()
    found = mixture_weights(truth, 1e-3)
    np.testing.assert_allclose(mixture_weights(truth[::-1, ::-1], 1e-3), found[::-1], atol=1e-9)
    assert found.sum() == pytest.approx(1)
    assert (found > 0).all()


def test_a_member_that_is_always_wrong_has_no_weight_unless_weights_are_pulled_together() -> None:
    truth = np.stack([np.full(50, 0.8), np.full(50, 1e-30)])
    assert mixture_weights(truth, 1e-4)[1] < 1e-3
    np.testing.assert_allclose(mixture_weights(truth, 1e4), 0.5, atol=1e-3)


def test_members_that_are_alike_share_their_weight() -> None:
    truth = np.repeat(truth_of(1), 3, axis=0)
    np.testing.assert_allclose(mixture_weights(truth, 1e-4), 1 / 3, atol=1e-6)


def test_the_pool_is_the_mean_of_probabilities() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, passes = torch.randn(2, 3, 5, generator=generator), torch.randn(2, 2, 3, 5, generator=generator)
    weights = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    mean = 0.5 * logits.softmax(1) + 0.2 * passes[:, 0].softmax(1) + 0.3 * passes[:, 1].softmax(1)
    torch.testing.assert_close(pooled_logits(logits, passes, weights, ONE, keep=False).exp(), mean)
    warm = pooled_logits(2 * logits, 2 * passes, weights, 2 * ONE, keep=False)
    torch.testing.assert_close(warm.exp(), mean)
    kept = pooled_logits(logits, passes, weights, ONE, keep=True)
    assert torch.equal(kept.argmax(1), logits.argmax(1))
    same = mean.argmax(1) == logits.argmax(1)
    assert 0 < int(same.sum()) < same.numel()
    torch.testing.assert_close(kept.exp()[:, :, 0][same[:, 0]], mean[:, :, 0][same[:, 0]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_labels_are_kept_where_logits_are_tied_or_far_apart(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randint(-2, 3, (1, 4, 4000), generator=generator).to(dtype)
    logits[:, :, 1000:2000] *= 1 + torch.finfo(dtype).eps
    logits[:, :, 2000:] *= 100
    passes = (5 * torch.randn(1, 3, 4, 4000, generator=generator)).to(dtype)
    found = pooled_logits(logits, passes, torch.full((4,), 0.25, dtype=torch.float64), ONE, keep=True)
    assert found.isfinite().all()
    assert torch.equal(found.argmax(1), logits.argmax(1))


def test_only_the_label_is_lifted_and_only_as_far_as_needed() -> None:
    logits = torch.tensor([[[2.0], [1.0], [0.0]]])
    scores = torch.tensor([[[-3.0], [-1.0], [-2.0]]])
    found = lifted(scores, logits)[0, :, 0]
    assert found[0] == -1.0
    assert found[2] == -2.0
    assert -1.0 - 1e-6 < found[1] < -1.0
