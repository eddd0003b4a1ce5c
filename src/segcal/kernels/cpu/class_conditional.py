"""The loss of class-conditional scaling in numpy, because small operations wake PyTorch's threads, which then spin."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def expert_loss(expert: tuple[Tensor, Tensor, Tensor], matrix: Tensor, *, ordered: bool) -> tuple[Tensor, Tensor]:
    """Twin of `segcal.functional.class_conditional.expert_loss`."""
    features, place, weight = (values.numpy() for values in expert)
    t = matrix.numpy() @ features
    if ordered:
        np.cumsum(t, axis=0, out=t)
    # the predicted class has the score 0, which is the largest
    powers = np.exp(-t)
    total = 1.0 + powers.sum(axis=0)
    wrong = np.flatnonzero(place)
    rank = place[wrong] - 1
    loss = float(weight @ np.log(total) + weight[wrong] @ t[rank, wrong])
    residual = powers * (weight / total)
    residual[rank, wrong] -= weight[wrong]
    if ordered:
        residual = np.cumsum(residual[::-1], axis=0)[::-1]
    return torch.tensor(loss, dtype=torch.float64), torch.from_numpy(-(residual @ features.T))
