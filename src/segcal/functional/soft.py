"""Metrics against soft labels: the share of raters that chose each class at each pixel.

With q the share of each class and p the probabilities, each metric is its expectation over a rater drawn at random.
The accuracy of a pixel is the share q of its predicted class, its NLL is -sum q log p, and its Brier score is
sum p^2 - 2 sum q p + 1. These are linear in q: pooling the image once for each rater, with that rater's labels, gives
the same means and the same accuracy in each bin, and one-hot q give the usual metrics. The least possible NLL is the
entropy of q, and the least possible Brier score 1 - sum q^2.

Everything else in segcal needs one label per pixel. Because its sums are linear in q as well, shares of n raters become
n label maps (`rater_labels`) that are fitted and measured together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from segcal.functional.checks import IGNORED, check_shares
from segcal.functional.pixels import pixel_statistics
from segcal.types import Activation, InputError


class SoftPixels(NamedTuple):
    """Values of each pixel that the metrics need, and the pixels of each true class, which raters may share.

    `hit` is the probability that the predicted class is right.
    """

    confidence: Float64[Tensor, " N"]
    predicted: Int64[Tensor, " N"]
    hit: Float64[Tensor, " N"]
    nll: Float64[Tensor, " N"]
    brier: Float64[Tensor, " N"]
    entropy: Float64[Tensor, " N"]
    support: Float64[Tensor, " L"]


def describe_soft(logits: Float[Tensor, "L N"], shares: Float[Tensor, "L N"]) -> SoftPixels:
    """Return the values of pixels with the share of raters that chose each class."""
    z, q = logits.double(), shares.double()
    nothing = torch.zeros(z.shape[1], dtype=torch.int64, device=z.device)
    confidence, predicted, _, _, entropy = pixel_statistics(logits, nothing)
    winner = predicted.long()
    log_probs = torch.log_softmax(z, dim=0)
    probs = log_probs.exp()
    # a share of 0 adds 0, although the logarithm of the probability may be infinite in float64
    nll = -torch.where(q > 0, q * log_probs, 0.0).sum(dim=0)
    brier = probs.square().sum(dim=0) - 2 * (q * probs).sum(dim=0) + 1
    return SoftPixels(confidence, winner, q.gather(0, winner[None])[0], nll, brier, entropy, q.sum(dim=1))


def describe_hard(logits: Float[Tensor, "L N"], labels: Int64[Tensor, " N"]) -> SoftPixels:
    """Return the same for labels, none of which may be negative."""
    confidence, predicted, nll, brier, entropy = pixel_statistics(logits, labels)
    winner, support = predicted.long(), torch.bincount(labels, minlength=len(logits)).double()
    return SoftPixels(confidence, winner, (winner == labels).double(), nll, brier, entropy, support)


def rater_labels(
    shares: Float[Tensor, "L *S"], raters: int, activation: Activation = "softmax"
) -> Int[Tensor, "raters ..."]:
    """Return label maps `[raters, *S]` that together vote for each class as often as the shares say.

    The k-th map holds at each pixel the class in which the cumulative share passes (k + 1/2) / raters. If the shares
    are those of as many raters, the votes are exact; otherwise each count is off by at most one vote. The maps are
    nested like level sets and are not those of single raters, which the shares do not hold. A pixel without a vote
    becomes -1.

    Examples:
        >>> rater_labels(torch.tensor([[0.5, 1.0, 0.0], [0.25, 0.0, 0.0], [0.25, 0.0, 0.0]]), raters=4).tolist()
        [[0, 0, -1], [0, 0, -1], [1, 0, -1], [2, 0, -1]]

    Args:
        shares: Share of the raters that chose each class `[L, *S]`, or each channel of a sigmoid head `[C, *S]`.
        raters: Number of raters n, and of label maps.
        activation: With "sigmoid" the maps are masks `[raters, C, *S]`, one for each channel.
    """
    if raters < 1:
        raise InputError(f"raters must be at least 1, got {raters}; give the number of raters that the shares are of")
    if activation == "sigmoid":
        check_shares(shares.double().reshape(1, -1), 1)
        return torch.stack([_passed(torch.stack([1 - own.double(), own]), raters) for own in shares], dim=1)
    voted = shares.sum(dim=0) > 0
    check_shares(shares[:, voted].double(), len(shares))
    return torch.where(voted, _passed(shares, raters), IGNORED)


def _passed(shares: Float[Tensor, "L *S"], raters: int) -> Int[Tensor, "raters *S"]:
    """Return how many classes' cumulative shares each of the marks (k + 1/2) / raters has passed, at each pixel."""
    labels = torch.zeros((raters, *shares.shape[1:]), dtype=torch.int64, device=shares.device)
    total = torch.zeros_like(shares[0], dtype=torch.float64)
    for own in shares[:-1]:  # the last class has the rest, also where rounding leaves the sum below 1
        total += own
        for k in range(raters):
            labels[k] += total <= (k + 0.5) / raters
    return labels
