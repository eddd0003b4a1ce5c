"""Operations on each pixel of an image: statistics for the metrics, sums of the likelihood, checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int32, Int64, Shaped
from torch import Tensor

from segcal.functional.probability import at_least_float32_dtype
from segcal.kernels.dispatch import accelerated, on_one_thread

_IN_NUMPY, _ROW = (torch.float32, torch.float64), 4096

PixelStatistics = tuple[
    Float64[Tensor, " N"], Int32[Tensor, " N"], Float64[Tensor, " N"], Float64[Tensor, " N"], Float64[Tensor, " N"]
]


@accelerated
def pixel_statistics(logits: Float[Tensor, "L N"], labels: Int64[Tensor, " N"]) -> PixelStatistics:
    """Return confidence, predicted class, NLL, Brier score and entropy of each pixel.

    A negative label counts as class 0; its NLL and Brier score mean nothing.
    """
    z = logits.double()
    predicted = logits.argmax(dim=0)
    below = z - z.gather(0, predicted.unsqueeze(0))
    powers = below.exp()
    # not the exponential of a log-softmax: k equal logits must give exactly 1 / k, which may be the edge of a bin
    total = powers.sum(dim=0)
    probs = powers / total
    truth = labels.clamp(min=0).unsqueeze(0)
    nll = total.log() - below.gather(0, truth).squeeze(0)
    brier = probs.square().sum(dim=0) - 2 * probs.gather(0, truth).squeeze(0) + 1
    return 1 / total, predicted.int(), nll, brier, total.log() - (probs * below).sum(dim=0)


@accelerated
def likelihood_sums(logits: Float[Tensor, "L N"], labels: Int64[Tensor, " N"], alpha: float) -> Float64[Tensor, "6"]:
    """Return sums over the labelled pixels: the likelihood at the inverse temperature `alpha` and its derivatives.

    In order: pixels, NLL, its slope and curvature at `alpha`, and its slope at 0 and at infinity.
    """
    none, alphas = (torch.tensor(values, dtype=torch.float64) for values in ([], [alpha]))
    return binned_sums(logits, labels, none, alphas)[0]


@accelerated
def binned_sums(
    logits: Float[Tensor, "L N"],
    labels: Int64[Tensor, " N"],
    edges: Float64[Tensor, " inner"],
    alphas: Float64[Tensor, " R"],
) -> Float64[Tensor, "R 6"]:
    """Return the sums of `likelihood_sums` of each bin of confidence, at its own inverse temperature.

    Bin r holds the confidences in `(edges[r - 1], edges[r]]`.
    """
    valid = labels >= 0
    z = logits[:, valid].double()
    below = z - z.amax(dim=0)
    truth = below.gather(0, labels[valid].unsqueeze(0)).squeeze(0)
    bins = torch.bucketize(1 / below.exp().sum(dim=0), edges.to(z.device))
    alpha = alphas.to(z.device)[bins]
    scaled = alpha * below
    probs = torch.log_softmax(scaled, dim=0).exp()
    average = (probs * below).sum(dim=0)
    curvature = ((probs * below.square()).sum(dim=0) - average.square()).clamp(min=0)
    nll = torch.logsumexp(scaled, dim=0) - alpha * truth
    terms = [torch.ones_like(truth), nll, average - truth, curvature, below.mean(dim=0) - truth, -truth]
    return z.new_zeros(len(alphas), 6).index_add_(0, bins, torch.stack(terms, dim=1))


def ascending(values: Float64[Tensor, "N *A"]) -> Float64[Tensor, "N *A"]:
    """Return values sorted along their first axis; on the CPU by NumPy, in a fraction of the time of PyTorch."""
    given = on_one_thread(values)
    return values.sort(dim=0).values if given is values else torch.from_numpy(np.sort(given, axis=0))


def moved_labels(scores: Float[Tensor, "L N"], logits: Float[Tensor, "L N"]) -> int:
    """Return the number of pixels at which the first largest of the scores is of another class than that of the logits.

    Examples:
        >>> moved_labels(torch.tensor([[0.4, 0.5], [0.6, 0.5]]), torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
        1
    """
    return int((scores.max(dim=0).indices != logits.max(dim=0).indices).sum())


def relabel(labels: Shaped[Tensor, "*S"], ignored: Sequence[int], num_classes: int) -> tuple[Int64[Tensor, "*S"], int]:
    """Return labels as int64 with -1 for ignored ones, and the flat position of the first invalid label, or -1."""
    given = on_one_thread(labels)  # int64 before the comparison: as uint8, -1 would be 255
    result = labels.to(torch.int64, copy=True) if given is labels else torch.from_numpy(given.astype(np.int64))
    if not result.numel():
        return result, -1
    values = on_one_thread(result)
    low, high = int(values.min()), int(values.max())  # which mostly replaces all that follows
    present = [label for label in ignored if low <= label <= high]
    if not present and low >= 0 and high < num_classes:
        return result, -1
    known = (values >= 0) & (values < num_classes)
    for label in present:
        skip = values == label
        known |= skip
        values[skip] = -1
    return result, -1 if known.all() else int((1 * known).reshape(-1).argmin())


def all_finite(values: Float[Tensor, "*A"]) -> bool:
    """Return whether no value is NaN or infinite.

    Examples:
        >>> all_finite(torch.tensor([1.0, 2.0])), all_finite(torch.tensor([torch.inf, -torch.inf]))
        (True, False)
    """
    # a sum is finite only if every term is, and needs no memory; that of huge numbers may overflow
    given: Any = on_one_thread(values) if values.is_contiguous() and values.dtype in _IN_NUMPY else values
    if given is values:
        total = float(values.detach().sum(dtype=at_least_float32_dtype(values.dtype)))
    else:
        flat, rows = given.reshape(-1), given.size // _ROW  # NumPy adds rows several times as fast as single numbers
        with np.errstate(all="ignore"):
            total = float(flat[: rows * _ROW].reshape(-1, _ROW).sum(axis=0).sum() + flat[rows * _ROW :].sum())
    return math.isfinite(total) or bool(torch.isfinite(values).all())


def image_sums(values: Float[Tensor, "B *S"]) -> Float64[Tensor, " B"]:
    """Return the sum of each image in float64."""
    sums = values.double()
    while sums.ndim > 1:  # axis by axis, because PyTorch divides a sum to one number between its threads
        sums = sums.sum(dim=-1)
    return sums
