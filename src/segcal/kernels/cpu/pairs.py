"""Pair offsets on the CPU by numpy: many small operations would wake PyTorch's threads, which then spin."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.constants import LARGEST_MARGIN, LEAST_POWER


def by_prediction(logits: Tensor, labels: Tensor, inverse: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Twin of `segcal.functional.pairs.by_prediction`."""
    truth = labels.numpy()
    kept = np.flatnonzero(truth >= 0)
    winner = logits.max(dim=0).indices.numpy()[kept]
    sequence = kept[np.argsort(winner, kind="stable")]
    z = logits.index_select(1, torch.from_numpy(sequence)).double().numpy()
    powers = np.minimum(z.max(axis=0, initial=-np.inf) - z, LARGEST_MARGIN)
    powers *= -inverse.double().numpy()[sequence]
    np.maximum(np.exp(powers, out=powers), LEAST_POWER, out=powers)
    ends = [0, *np.cumsum(np.bincount(winner, minlength=len(z))).tolist()]
    return (
        tuple(torch.from_numpy(powers[:, first:last]) for first, last in pairwise(ends)),
        tuple(torch.from_numpy(truth[sequence[first:last]]) for first, last in pairwise(ends)),
    )


def pair_sums(rest: Tensor, labels: Tensor, k: int, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Twin of `segcal.functional.pairs.pair_sums`."""
    powers, truth = rest.numpy(), labels.numpy()
    classes, count = powers.shape
    if count == 0:
        return tuple(torch.zeros((classes,) * axes, dtype=torch.float64) for axes in range(3))  # type: ignore[return-value]
    odds = powers / (powers + np.exp(offsets.numpy())[:, np.newaxis] * (1 - powers))
    slope = 1 - odds
    slope[k] = 0.0
    total, place = odds.sum(axis=0), np.arange(count)
    nll = np.log(total).sum() - np.log(odds[truth, place]).sum()
    moved = slope * odds
    moved /= total
    gradient = np.bincount(truth, weights=slope[truth, place], minlength=classes) - moved.sum(axis=1)
    curvature = np.diag(np.einsum("jn,jn->j", slope, moved)) - moved @ moved.T
    return torch.tensor(nll, dtype=torch.float64), torch.from_numpy(gradient), torch.from_numpy(curvature)
