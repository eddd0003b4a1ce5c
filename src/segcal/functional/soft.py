"""Metrics against soft labels: the share of raters that chose each class at each pixel.

With q the share of each class and p the probabilities, each metric is its expectation over a rater drawn at random.
The accuracy of a pixel is the share q of its predicted class, its NLL is -sum q log p, and its Brier score is
sum p^2 - 2 sum q p + 1. These are linear in q: pooling the image once for each rater, with that rater's labels, gives
the same means and the same accuracy in each bin, and one-hot q give the usual metrics. The least possible NLL is the
entropy of q, and the least possible Brier score 1 - sum q^2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from segcal.functional.binning import Histogram
from segcal.functional.pixels import pixel_statistics


class SoftPixels(NamedTuple):
    """What the metrics need from each pixel; `hit` is the probability that its predicted class is right."""

    confidence: Float64[Tensor, " N"]
    predicted: Int64[Tensor, " N"]
    hit: Float64[Tensor, " N"]
    nll: Float64[Tensor, " N"]
    brier: Float64[Tensor, " N"]


def describe_soft(logits: Float[Tensor, "L N"], shares: Float[Tensor, "L N"]) -> SoftPixels:
    """Return confidence, predicted class, expected accuracy, NLL and Brier score of each pixel."""
    z, q = logits.double(), shares.double()
    nothing = torch.zeros(z.shape[1], dtype=torch.int64, device=z.device)
    confidence, predicted, *_ = pixel_statistics(logits, nothing)
    winner = predicted.long()
    log_probs = torch.log_softmax(z, dim=0)
    probs = log_probs.exp()
    # a share of 0 adds 0, although the logarithm of the probability may be infinite in float64
    nll = -torch.where(q > 0, q * log_probs, 0.0).sum(dim=0)
    brier = probs.square().sum(dim=0) - 2 * (q * probs).sum(dim=0) + 1
    return SoftPixels(confidence, winner, q.gather(0, winner[None])[0], nll, brier)


def describe_hard(logits: Float[Tensor, "L N"], labels: Int64[Tensor, " N"]) -> SoftPixels:
    """Return the same for labels, none of which may be negative."""
    confidence, predicted, nll, brier, _ = pixel_statistics(logits, labels)
    winner = predicted.long()
    return SoftPixels(confidence, winner, (winner == labels).double(), nll, brier)


def soft_histogram(
    edges: Float64[Tensor, " R1"],
    value: Float64[Tensor, " N"],
    group: Int64[Tensor, " N"],
    hit: Float64[Tensor, " N"],
    groups: int,
) -> Histogram:
    """Return pixels, summed `hit` and summed `value` by group and right-closed bin of the value: `[groups, R]`."""
    bins = len(edges) - 1
    key = group * bins + torch.bucketize(value, edges[1:-1].contiguous())
    sums = [value.new_zeros(groups * bins).index_add_(0, key, terms) for terms in (hit, value)]
    return Histogram(*(part.view(groups, bins) for part in (torch.bincount(key, minlength=groups * bins), *sums)))
