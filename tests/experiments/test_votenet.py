from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from experiments.lpba40.tiling import OUTSIDE, ForegroundPatches
from experiments.multi_atlas.votenet import VoteLoss, VoteNet
from segcal.training.loop import train
from segcal.training.settings import Training
from segcal.types import InputError


@pytest.mark.parametrize("shape", [(8, 8, 8), (9, 14, 11), (5, 4, 7)])
def test_volumes_of_any_size(shape: tuple[int, ...]) -> None:
    target, atlas = torch.rand(2, 1, *shape), torch.rand(2, 1, *shape)
    assert VoteNet(4, 2)(target, atlas).shape == (2, 1, *shape)


def test_each_volume_of_a_batch_is_on_its_own() -> None:
    network = VoteNet(4, 2).eval()
    target, atlas = torch.rand(3, 1, 8, 9, 8), torch.rand(3, 1, 8, 9, 8)
    together = network(target, atlas)
    alone = torch.cat([network(target[k : k + 1], atlas[k : k + 1]) for k in range(3)])
    assert torch.allclose(together, alone, atol=1e-5)


def test_padding_has_no_weight() -> None:
    objective = VoteLoss(VoteNet(2, 1))
    target, atlas, right = torch.rand(1, 1, 6, 6, 6), torch.rand(1, 1, 6, 6, 6), torch.rand(1, 1, 6, 6, 6) < 0.5
    labels = torch.full((1, 1, 6, 6, 6), OUTSIDE, dtype=torch.uint8)
    labels[..., :3] = torch.randint(2, (1, 1, 6, 6, 3))
    inside = labels != OUTSIDE
    loss, weight = objective(target, atlas, right, labels)
    other = torch.where(inside, right, ~right)
    assert weight == inside.sum()
    assert torch.equal(loss, objective(target, atlas, other, labels)[0])
    logits = objective.network(target, atlas)[inside]
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, right[inside].float(), reduction="sum")
    assert torch.allclose(loss, expected)


def test_it_learns_where_images_agree(set_threads: Callable[[int], None]) -> None:
    """The label is right where the atlas looks like the target: the loss falls well below that of guessing."""
    set_threads(1)  # the convolutions are too small to share
    torch.manual_seed(0)
    pairs = []
    for _ in range(4):
        target = torch.rand(1, 8, 8, 8)
        right = torch.rand(1, 8, 8, 8) < 0.5
        pairs.append((target, torch.where(right, target, 1 - target), right, torch.ones_like(right)))
    history = train(VoteLoss(VoteNet(4, 1)), pairs, Training(epochs=20, learning_rate=2e-2, batch_size=2, device="cpu"))
    assert history.epochs[-1].loss < 0.5 * history.epochs[0].loss


def test_patches_have_a_twentieth_of_foreground() -> None:
    """Foreground is along one edge, so that most random patches have less."""
    labels = torch.zeros(1, 1, 30, 30, 30, dtype=torch.uint8)
    labels[..., :14, :14, :] = 1
    labels[..., 28:] = OUTSIDE
    image = torch.arange(30**3).reshape(labels.shape)
    cut = ForegroundPatches(12)
    for seed in range(10):
        images, own = cut((image, labels), [np.random.default_rng(seed)], 0)
        assert images.shape == own.shape == (1, 1, 12, 12, 12)
        assert (own == 1).float().mean() >= 0.05
        corner = int(images.flatten()[0])
        start = (corner // 900, corner // 30 % 30, corner % 30)
        box = tuple(slice(first, first + 12) for first in start)
        assert torch.equal(images[0, 0], image[0, 0][box])
    assert cut((image[..., :12, :12, :12], labels[..., :12, :12, :12]), [], 0)[0].shape == (1, 1, 12, 12, 12)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="target and warped atlas"):
        VoteNet(2, 1)(torch.rand(1, 1, 4, 4, 4), torch.rand(1, 1, 4, 4, 5))
    with pytest.raises(InputError, match="features must be at least 1"):
        VoteNet(0)
