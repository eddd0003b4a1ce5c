"""The functions of `affine_kernels` in plain PyTorch, for every device; also the readable statement of them."""

from __future__ import annotations

import torch
from torch import Tensor

from segcal.kernels.constants import SMALLEST_LOG_PROBABILITY


def features(logits: Tensor, *, of_log: bool, dim: int) -> Tensor:
    """What the map is applied to: the logits, or their log-probabilities."""
    return torch.log_softmax(logits, dim=dim).clamp(min=SMALLEST_LOG_PROBABILITY) if of_log else logits


def affine(
    logits: Tensor, labels: Tensor, importance: Tensor, weights: Tensor, bias: Tensor, *, of_log: bool
) -> Tensor:
    """Summed NLL and its gradient in weights and bias, in one row: Float64[1 + weights + bias].

    Args:
        logits: `[L, N]`.
        labels: `[N]`; pixels with a negative one are left out.
        importance: `[L]`, the weight of a pixel of each true class.
        weights: `[L, L]`, or `[L, 1]` for one scale for each class.
        bias: `[L]`.
        of_log: Whether the map is applied to the log-probabilities.
    """
    index = (labels >= 0).nonzero().squeeze(1)
    truth = labels[index].unsqueeze(0)
    x = features(logits[:, index].double(), of_log=of_log, dim=0)
    diagonal = weights.shape[1] == 1
    log_probs = torch.log_softmax((weights * x if diagonal else weights @ x) + bias.unsqueeze(1), dim=0)
    share = importance[truth]
    loss = -(share * log_probs.gather(0, truth)).sum()
    residual = (share * log_probs.exp()).scatter_add(0, truth, -share)
    slope = (residual * x).sum(dim=1) if diagonal else residual @ x.T
    return torch.cat([loss.reshape(1), slope.reshape(-1), residual.sum(dim=1)])
