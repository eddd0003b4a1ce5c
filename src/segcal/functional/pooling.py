"""Linear pooling of several passes over an image: a weighted mean of their probabilities, whose labels may be guarded.

With members m = 0 .. K, the first of which are the logits themselves, and weights w on the simplex,

    p(x) = sum_m w_m softmax(z_m(x) / T),

as logarithms, where T is one temperature of all members. The label of the first member is kept by lifting its
probability to the largest, where another class has passed it. The mean log of the true class is concave in w, so its
maximum is unique up to members that are alike.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from segcal.functional.division import scaled_probabilities
from segcal.functional.probability import at_least_float32, keep_labels, predicted_labels
from segcal.types import Array, Logits, Passes

_STEPS = 100
_TOLERANCE = 1e-12  # of the decrease that a step promises, in nats
_ARMIJO = 0.25
_SMALLEST = 1e-300


def pooled_logits(
    logits: Logits, passes: Passes, weights: Float64[Tensor, " M"], temperature: Float64[Tensor, ""], *, keep: bool
) -> Logits:
    """Return the logarithm of the weighted mean of probabilities, in float32 or float64.

    Args:
        logits: Logits of the first member.
        passes: Logits of the other members.
        weights: Weight of each member, the first included; they sum to 1.
        temperature: Temperature of every member.
        keep: Whether the predicted labels are those of `logits`.

    Examples:
        >>> logits, passes = torch.tensor([[[0.2], [0.0]]]), torch.tensor([[[[0.0], [2.0]]]])
        >>> half, one = torch.tensor([0.5, 0.5], dtype=torch.float64), torch.ones((), dtype=torch.float64)
        >>> pooled_logits(logits, passes, half, one, keep=False).softmax(1).flatten()
        tensor([0.3345, 0.6655])
        >>> pooled_logits(logits, passes, half, one, keep=True).softmax(1).flatten()
        tensor([0.5000, 0.5000])
    """
    wide = at_least_float32(logits)
    share, warm = weights.to(wide.dtype), temperature.to(wide.dtype).expand(wide.shape[0], 1, *wide.shape[2:])
    mean = share[0] * scaled_probabilities(wide, warm)
    for k in range(passes.shape[1]):
        mean = mean + share[k + 1] * scaled_probabilities(passes[:, k].to(wide.dtype), warm)
    found = mean.clamp(min=torch.finfo(torch.float32).tiny).log()
    return lifted(found, logits) if keep else found


def lifted(scores: Logits, logits: Logits) -> Logits:
    """Return scores with the argmax of `logits`: where another class has a larger score, its own becomes as large."""
    label = predicted_labels(logits).unsqueeze(1)
    return keep_labels(scores.scatter(1, label, scores.amax(dim=1, keepdim=True)), logits)


def mixture_weights(truth: Float[np.ndarray, "M N"], strength: float) -> Float64[np.ndarray, " M"]:
    """Return the weights of greatest mean log of `weights @ truth`, shrunk towards equal weights.

    `strength` times the Kullback-Leibler divergence of the weights from equal ones is subtracted; infinity gives equal
    weights. Newton's method along the simplex, with steps that stay inside it: the penalty is a barrier at its edges.

    Args:
        truth: Probability that each member gives the true class of each pixel.
        strength: Above 0.

    Examples:
        >>> mixture_weights(np.array([[0.9, 0.9], [0.1, 0.1]]), 0.01).round(3)
        array([0.994, 0.006])
        >>> mixture_weights(np.array([[0.9, 0.9], [0.1, 0.1]]), np.inf)
        array([0.5, 0.5])
    """
    members, pixels = truth.shape
    weights = np.full(members, 1 / members)
    if not np.isfinite(strength):
        return weights
    share = strength / members

    def loss(at: Float64[np.ndarray, " M"]) -> float:
        mean = np.log(np.maximum(at @ truth, _SMALLEST)).mean()
        return float(-mean - share * np.log(at).sum())

    value = loss(weights)
    for _ in range(_STEPS):
        ratio = truth / np.maximum(weights @ truth, _SMALLEST)
        slope = -ratio.sum(axis=1, dtype=np.float64) / pixels - share / weights
        bend = (ratio @ ratio.T) / pixels + np.diag(share / weights**2)
        system = np.block([[bend, np.ones((members, 1))], [np.ones((1, members)), np.zeros((1, 1))]])
        step = np.linalg.solve(system, np.append(-slope, 0.0))[:members]
        promised = -float(slope @ step)
        if promised < _TOLERANCE:
            break
        inside = np.min(np.where(step < 0, -weights / np.minimum(step, -_SMALLEST), np.inf))
        length = min(1.0, 0.99 * float(inside))
        while (found := loss(weights + length * step)) > value - _ARMIJO * length * promised and length > _TOLERANCE:
            length /= 2
        weights, value = weights + length * step, found
    total: Array = weights / weights.sum()
    return total
