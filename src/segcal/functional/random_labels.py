"""Labels that the probabilities of an image imply: expected pixels per class, and labels drawn from them.

Computed in float64 whatever the precision of the logits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from segcal.kernels.dispatch import accelerated

_PART = 1 << 20
"""Logits converted to float64 at a time."""


@accelerated
def class_mass(
    logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"], confidence: Float64[Tensor, " N"]
) -> Float64[Tensor, " L"]:
    """Return the sum of each class's probability over the labelled pixels, the number that the network expects.

    A probability is the exponential of the distance to the largest logit, times the confidence of its pixel, which is
    known already: the sum is one product, and no softmax is computed again.
    """
    total = torch.zeros(len(logits), dtype=torch.float64, device=logits.device)
    weights, start = torch.where(labels.reshape(-1) >= 0, confidence, 0.0), 0
    for z, truth in _parts(logits, labels):
        total += (z - z.amax(dim=0)).exp_() @ weights[start : start + len(truth)]
        start += len(truth)
    return total


def draw_labels(
    logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"], random: np.random.Generator
) -> Int64[Tensor, "*S"]:
    """Draw labels from the softmax of the logits, pixel by pixel; ignored pixels stay ignored.

    With these labels the network is perfectly calibrated, whatever its logits. One number is drawn for each pixel in
    order, so that slabs drawn one after the other equal the whole.
    """
    found = [labels.new_empty(0)]
    for z, truth in _parts(logits, labels):
        uniform = torch.from_numpy(random.random(truth.numel())).to(logits.device)
        powers = (z - z.amax(dim=0)).exp()
        drawn = (powers.cumsum(dim=0)[:-1] <= uniform * powers.sum(dim=0)).sum(dim=0)
        found.append(torch.where(truth >= 0, drawn, truth))
    return torch.cat(found).view(labels.shape)


def _parts(
    logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"]
) -> Iterator[tuple[Float64[Tensor, "L N"], Int64[Tensor, " N"]]]:
    """Yield some pixels at a time in float64, which needs little memory."""
    size = max(1, _PART // len(logits))
    for z, truth in zip(
        torch.split(logits.flatten(1), size, dim=1), torch.split(labels.reshape(-1), size), strict=True
    ):
        yield z.double(), truth


def generator_of(seed: int, name: str) -> np.random.Generator:
    """Return the generator of a case: the same for every method, on every machine, in any order of cases."""
    digest = hashlib.sha256(f"redraw:{seed}:{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))
