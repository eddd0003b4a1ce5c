"""Labels that the probabilities of an image imply: expected pixels per class, and labels drawn from them.

Computed in float64 whatever the precision of the logits.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor


def class_mass(logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"]) -> Float64[Tensor, " L"]:
    """Return the sum of each class's probability over the labelled pixels, the number that the network expects."""
    flat = logits.reshape(logits.shape[0], -1)
    return torch.softmax(flat[:, labels.reshape(-1) >= 0].double(), dim=0).sum(dim=1)


def draw_labels(
    logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"], random: np.random.Generator
) -> Int64[Tensor, "*S"]:
    """Draw labels from the softmax of the logits, pixel by pixel; ignored pixels stay ignored.

    With these labels the network is perfectly calibrated, whatever its logits. One number is drawn for each pixel in
    order, so that slabs drawn one after the other equal the whole.
    """
    uniform = torch.from_numpy(random.random(labels.numel())).to(logits.device)
    return labels_at(logits.reshape(logits.shape[0], -1), labels.reshape(-1), uniform).view(labels.shape)


def labels_at(
    logits: Float[Tensor, "L N"], labels: Int64[Tensor, " N"], uniform: Float64[Tensor, " N"]
) -> Int64[Tensor, " N"]:
    """Return the class in which the cumulative probability of each pixel passes `uniform`; negative labels stay."""
    z = logits.double()
    powers = (z - z.amax(dim=0)).exp()
    drawn = (powers.cumsum(dim=0)[:-1] <= uniform * powers.sum(dim=0)).sum(dim=0)
    return torch.where(labels >= 0, drawn, labels)


def generator_of(seed: int, name: str) -> np.random.Generator:
    """Return the generator of a case: the same for every method, on every machine, in any order of cases."""
    digest = hashlib.sha256(f"redraw:{seed}:{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))
