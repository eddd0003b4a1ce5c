"""Many small systems with nonnegative solutions, by the active set method of Lawson and Hanson (1974)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from segcal.kernels.constants import SETTLED
from segcal.kernels.dispatch import accelerated


@accelerated
def nonnegative_solutions(matrices: Float64[Tensor, "V N N"], free: Float64[Tensor, "V N"]) -> Float64[Tensor, "V N"]:
    """Return the minima of `x^T M x / 2 - 1^T x` with `x >= 0` for positive definite matrices.

    Args:
        matrices: M of each system.
        free: Their minima without the constraint, `M x = 1`; those without a negative entry are the result.

    Examples:
        >>> curvature = torch.tensor([[[1.0, 3.0], [3.0, 10.0]]]).double()
        >>> nonnegative_solutions(curvature, torch.tensor([[7.0, -2.0]]).double())
        tensor([[1., 0.]], dtype=torch.float64)
    """
    wrong = (free < 0).any(dim=1).nonzero().squeeze(1)
    return free.index_copy(0, wrong, _minima(matrices[wrong]))


def _minima(matrices: Float64[Tensor, "V N N"]) -> Float64[Tensor, "V N"]:
    """Let the entry of steepest descent enter the set of positive ones, as long as there is one."""
    x = torch.zeros_like(matrices[..., 0])
    passive = torch.zeros_like(x, dtype=torch.bool)
    while True:
        slope = 1 - (matrices @ x.unsqueeze(2)).squeeze(2)
        steepest, best = slope.masked_fill(passive, -torch.inf).max(dim=1, keepdim=True)
        moving = steepest > SETTLED
        if not moving.any():
            return x
        passive |= torch.zeros_like(passive).scatter(1, best, moving)
        while moving.any():  # an entry that would become negative stops the step and leaves the set
            trial = _solutions_among(matrices, passive)
            stops = moving & passive & (trial <= 0)
            step = torch.where(stops, x / (x - trial), 1.0).amin(dim=1, keepdim=True)
            blocked = stops.any(dim=1, keepdim=True)
            x = torch.where(moving, torch.where(blocked, x + step * (trial - x), trial), x)
            passive &= ~blocked | (x > SETTLED)
            x = x * passive
            moving = blocked


def _solutions_among(matrices: Float64[Tensor, "V N N"], kept: Bool[Tensor, "V N"]) -> Float64[Tensor, "V N"]:
    """Solve `M x = 1` among the kept rows and columns; 0 elsewhere."""
    unit = torch.eye(kept.shape[1], dtype=matrices.dtype, device=matrices.device)
    both = kept.unsqueeze(1) & kept.unsqueeze(2)
    ones = kept.to(matrices.dtype).unsqueeze(2)
    found: Tensor = torch.linalg.solve(torch.where(both, matrices, unit), ones)
    return found.squeeze(2)
