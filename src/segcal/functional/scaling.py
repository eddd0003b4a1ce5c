"""Sums over the pixels of an image for ensemble and attended temperature scaling (ETS, ATS)."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from segcal.functional.probability import at_least_float32
from segcal.kernels.dispatch import accelerated
from segcal.types import Array


class Mixture(NamedTuple):
    """Sums over pixels for weights of `{softmax(alpha z), softmax(z), 1 / L}`; sums of two sets of pixels add."""

    nll: float
    gradient: Array
    curvature: Array
    gram: Array
    """Inner products of the three vectors of probabilities."""
    truth: Array
    """Their probabilities of the true class."""


@accelerated
def mixed_logits(
    logits: Float[Tensor, "B L *S"], temperature: Float64[Tensor, ""], weights: Float64[Tensor, "3"]
) -> Float[Tensor, "B L *S"]:
    """Return the logarithm of the weighted sum of softmax(z / T), softmax(z) and 1 / L at each pixel."""
    wide = at_least_float32(logits)
    below = wide - wide.amax(dim=1, keepdim=True)
    scaled, raw, uniform = weights.to(wide.dtype).unbind()
    tempered = torch.softmax(below / temperature.to(wide.dtype), dim=1)
    mixed = scaled * tempered + raw * torch.softmax(below, dim=1) + uniform / logits.shape[1]
    return mixed.clamp(min=torch.finfo(wide.dtype).tiny).log()


@accelerated
def mixture_sums(
    logits: Float[Tensor, "L N"],
    labels: Int64[Tensor, " N"],
    importance: Float64[Tensor, " L"],
    alpha: float,
    weights: Float64[Tensor, "3"],
) -> Float64[Tensor, "19"]:
    """Return the sums from which the weights of `{softmax(alpha z), softmax(z), 1 / L}` are found; see `read_mixture`.

    Over the labelled pixels, a pixel of class c counted `importance[c]` times: the NLL of the mixture and its gradient
    (4); its second derivatives (9); the products of the probabilities scaled by scaled, scaled by raw and raw by raw
    (3); the probabilities of the true class, scaled and raw (2); the count.
    """
    importance, weights = importance.to(logits.device), weights.to(logits.device)
    index = (labels >= 0).nonzero().squeeze(1)
    truth = labels[index].unsqueeze(0)
    z = logits[:, index].double()
    below = z - z.amax(dim=0)
    scaled, raw = torch.softmax(alpha * below, dim=0), torch.softmax(below, dim=0)
    share = importance[truth].squeeze(0)
    uniform = torch.full_like(share, 1 / logits.shape[0])
    parts = torch.stack([scaled.gather(0, truth).squeeze(0), raw.gather(0, truth).squeeze(0), uniform])
    mixed = weights @ parts
    ratios = parts / mixed
    pairs = ((scaled, scaled), (scaled, raw), (raw, raw))
    products = torch.stack([(one * other).sum(dim=0) @ share for one, other in pairs])
    return torch.cat(
        [
            -(mixed.log() @ share).reshape(1),
            -ratios @ share,
            ((share * ratios) @ ratios.T).reshape(-1),
            products,
            parts[:2] @ share,
            share.sum().reshape(1),
        ]
    ).cpu()


def read_mixture(sums: Array, num_classes: int) -> Mixture:
    """Split a row of sums into its parts."""
    scaled, cross, raw, truth_scaled, truth_raw, pixels = sums[13:19]
    each = pixels / num_classes
    gram = np.array([[scaled, cross, each], [cross, raw, each], [each, each, each]])
    return Mixture(float(sums[0]), sums[1:4], sums[4:13].reshape(3, 3), gram, np.array([truth_scaled, truth_raw, each]))


@accelerated
def attended_sums(
    logits: Float[Tensor, "L N"], labels: Int64[Tensor, " N"], threshold: float, alpha: float
) -> Float64[Tensor, "7"]:
    """Return the sums of `temperature.Likelihood` for the attended loss, and the number of its borrowed terms.

    The loss is `-log S_y` plus `-log(1 - S_k)` for each other class k whose raw probability is at least `threshold`,
    with `S = softmax(alpha z)`.
    """
    index = (labels >= 0).nonzero().squeeze(1)
    truth = labels[index]
    z = logits[:, index].double()
    below = z - z.amax(dim=0)
    own = below.gather(0, truth.unsqueeze(0)).squeeze(0)
    log_total, mean, variance = _moments(below, alpha)
    total = torch.stack(
        [
            torch.ones_like(own).sum(),
            (log_total - alpha * own).sum(),
            (mean - own).sum(),
            variance.sum(),
            (below.mean(dim=0) - own).sum(),
            -own.sum(),
            own.new_zeros(()),
        ]
    )
    raw = torch.softmax(below, dim=0)
    for k in range(logits.shape[0] if logits.shape[0] > 1 else 0):
        chosen = (raw[k] >= threshold) & (truth != k)
        others = torch.cat([below[:k, chosen], below[k + 1 :, chosen]])
        rest_total, rest_mean, rest_variance = _moments(others, alpha)
        total += torch.stack(
            [
                own.new_zeros(()),
                (log_total[chosen] - rest_total).sum(),
                (mean[chosen] - rest_mean).sum(),
                (variance[chosen] - rest_variance).sum(),
                (below[:, chosen].mean(dim=0) - others.mean(dim=0)).sum(),
                -others.amax(dim=0).sum() if others.numel() else own.new_zeros(()),
                chosen.sum().double(),
            ]
        )
    return total.cpu()


def _moments(z: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-sum-exp of `alpha z`, and mean and variance of `z` under its softmax."""
    probs = torch.softmax(alpha * z, dim=0)
    mean = (probs * z).sum(dim=0)
    return torch.logsumexp(alpha * z, dim=0), mean, (probs * (z - mean).square()).sum(dim=0)


def least_on_simplex(curvature: Float64[np.ndarray, "N N"], slope: Float64[np.ndarray, " N"]) -> Array:
    """Return the point of the simplex with the least `v' curvature v / 2 + slope' v`, found face by face.

    Examples:
        >>> least_on_simplex(np.eye(3), np.array([-1.0, -1.0, 5.0])).round(6)
        array([0.5, 0.5, 0. ])
    """
    n = len(slope)
    best: Array = np.eye(n)[0]
    least = np.inf
    for size in range(1, n + 1):
        for face in combinations(range(n), size):
            found = _least_on_face(curvature, slope, list(face))
            value = float(found @ curvature @ found / 2 + slope @ found)
            if (found >= 0).all() and value < least:
                best, least = found, value
    return best


def _least_on_face(curvature: Array, slope: Array, face: list[int]) -> Array:
    """Return the minimum among points whose entries outside a face are 0 and whose sum is 1, of any sign."""
    k = len(face)
    system = np.ones((k + 1, k + 1))
    system[:k, :k], system[k, k] = curvature[np.ix_(face, face)], 0.0
    solution = np.linalg.lstsq(system, np.append(-slope[face], 1.0), rcond=None)[0][:k]
    point = np.zeros_like(slope)
    point[face] = solution / solution.sum()
    return point
