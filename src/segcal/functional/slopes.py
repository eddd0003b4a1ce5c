"""The slope of the log-likelihood in 1/T of each pixel, at many temperatures at once (Theorem 1)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

_CHUNK = 1 << 18
"""Scores converted to float64 at a time (2 MiB), which stay in the cache."""


def likelihood_slopes(
    logits: Float[Tensor, "L N"], labels: Int[Tensor, " N"], lowest: float, octaves: int
) -> Float32[Tensor, "steps N"]:
    """Return z_label - E[z] at temperatures from `lowest` on, half an octave apart; 0 where the label is negative.

    Two exponentials for each score, squared again and again, give those of all temperatures.

    Examples:
        >>> likelihood_slopes(torch.tensor([[1.0], [0.0]]), torch.tensor([0]), 1.0, 1)[:, 0]  # 1 / (1 + exp(1 / T))
        tensor([0.2689, 0.3302, 0.3775])
    """
    steps, count = 2 * octaves + 1, labels.numel()
    result = torch.empty(steps, count, dtype=torch.float32, device=logits.device)
    chunk = max(1, _CHUNK // len(logits))
    for start in range(0, count, chunk):
        own, truth = logits[:, start : start + chunk].double(), labels[start : start + chunk]
        below = own - own.amax(dim=0)
        right = below.gather(0, truth.clamp(min=0).long().unsqueeze(0))[0]
        for last in (steps - 1, steps - 2):
            power = torch.exp(below / (lowest * 2 ** (last / 2)))
            for k in range(last, -1, -2):
                mean = (power * below).sum(dim=0) / power.sum(dim=0)
                result[k, start : start + chunk] = (right - mean) * (truth >= 0)
                power *= power
    return result
