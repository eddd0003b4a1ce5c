"""Maps of uncertainty from probabilities `[B, L, *S]`: entropy, confidence, and the disagreement of several passes."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from segcal.functional.division import softmax_of
from segcal.types import Logits, Passes, Probs


def entropy_of(probs: Probs) -> Float[Tensor, "B 1 *S"]:
    """Return the entropy of each pixel in nats.

    Examples:
        >>> entropy_of(torch.tensor([[[0.5, 1.0], [0.5, 0.0]]])).exp()
        tensor([[[2., 1.]]])
    """
    found: Tensor = -torch.special.xlogy(probs, probs).sum(dim=1, keepdim=True)
    return found


def disagreement_of(logits: Logits, passes: Passes) -> Float[Tensor, "B 1 *S"]:
    """Return the mutual information between the label of a pixel and the pass that predicts it, in nats.

    This is the entropy of the mean of all passes, the logits among them, minus the mean of their entropies: 0 where
    all agree, at most the logarithm of their number.

    Examples:
        >>> certain = torch.tensor([[[40.0], [0.0]]])
        >>> disagreement_of(certain, certain[:, None]).abs(), disagreement_of(certain, certain.flip(1)[:, None]).exp()
        (tensor([[[0.]]]), tensor([[[2.]]]))
    """
    members = [softmax_of(logits), *(softmax_of(passes[:, k]) for k in range(passes.shape[1]))]
    mean = torch.stack(members).mean(dim=0)
    within = torch.stack([entropy_of(probs) for probs in members]).mean(dim=0)
    return (entropy_of(mean) - within).clamp(min=0)
