"""Temperatures whose logarithm is linear in features of a pixel: their loss, its gradient and its curvature.

With `u = log T = point . (1, features, class indicator)`, `a = 1 / T`, `p = softmax(a z)` and the mean `m = p . z`,

    d NLL / d u = a (z_y - m),          curvature a^2 sum_k p_k (z_k - m)^2
    d p_k / d u = -a p_k (z_k - m),     so that for the Brier score |p - y|^2 both follow by the chain rule.

Curvatures are Gauss-Newton approximations (the Fisher information for the NLL), which are never negative. Where a bound
clips the temperature, slope and curvature are 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from segcal.kernels.constants import LOSS_HEAD
from segcal.kernels.dispatch import accelerated
from segcal.types import Array

_STEPS = 20
_HALVINGS = 6  # of a step that increases the loss, as it can where bounds clip many temperatures


@dataclass(frozen=True)
class Loss:
    """Sums over pixels; sums of two sets of pixels add."""

    pixels: int
    nll: float
    value: float
    """NLL plus the weighted Brier score."""
    bounded: int
    """Pixels whose temperature a bound clips."""
    gradient: Array
    curvature: Array


@dataclass(frozen=True)
class Pixels:
    """Pixels with their features, in memory; those of a fold are adjacent, between two of the `edges`."""

    logits: Float[Tensor, "L N"]
    labels: Int64[Tensor, " N"]
    features: Float[Tensor, "F N"]
    edges: tuple[int, ...]

    def part(self, first: int, last: int) -> Pixels:
        """Return the folds from `first` to before `last` as one."""
        at = slice(self.edges[first], self.edges[last])
        return Pixels(
            self.logits[:, at].contiguous(),
            self.labels[at].contiguous(),
            self.features[:, at].contiguous(),
            (0, at.stop - at.start),
        )


@accelerated
def loss_sums(
    logits: Float[Tensor, "L N"],
    labels: Int64[Tensor, " N"],
    features: Float[Tensor, "F N"],
    point: Float64[np.ndarray, " P"],
    bounds: tuple[float, float],
    *,
    brier: float = 0.0,
    curvature: bool = False,
) -> Array:
    """Return one row of sums, to be added up and read by `read_loss`; pixels with a negative label are skipped.

    The point holds the intercept, a weight for each feature and an offset for each predicted class.
    """
    kept = labels >= 0
    z, truth = logits[:, kept].double(), labels[kept].unsqueeze(0)
    classes, count = z.shape
    known = torch.cat(
        [
            torch.ones(1, count, dtype=z.dtype, device=z.device),
            features[:, kept].double(),
            torch.nn.functional.one_hot(z.argmax(dim=0), classes).T.double(),
        ]
    )
    exponent = torch.from_numpy(np.asarray(point)).to(z.device) @ known
    low, high = (float(np.log(bound)) for bound in bounds)
    inside = ((exponent > low) & (exponent < high)).double()
    cold = (-exponent.clamp(low, high)).exp()
    below = z - z.amax(dim=0)
    log_probs = torch.log_softmax(cold * below, dim=0)
    probs = log_probs.exp()
    apart = below - (probs * below).sum(dim=0)
    nll = -log_probs.gather(0, truth).squeeze(0)
    slope = cold * apart.gather(0, truth).squeeze(0)
    bend = cold.square() * (probs * apart.square()).sum(dim=0)
    moved = -cold * probs * apart
    off = probs.scatter_add(0, truth, -torch.ones_like(truth, dtype=z.dtype))
    value = nll + brier * off.square().sum(dim=0)
    slope = inside * (slope + 2 * brier * (off * moved).sum(dim=0))
    bend = inside * (bend + 2 * brier * moved.square().sum(dim=0))
    head = [torch.ones_like(nll).sum(), nll.sum(), value.sum(), (1 - inside).sum()]
    parts = [torch.stack(head), known @ slope]
    if curvature:
        parts.append(((known * bend) @ known.T).reshape(-1))
    return torch.cat(parts).cpu().numpy()


def read_loss(sums: Array, numbers: int) -> Loss:
    """Split a row of sums into its parts, for a point of so many numbers."""
    gradient, curvature = sums[LOSS_HEAD : LOSS_HEAD + numbers], sums[LOSS_HEAD + numbers :]
    return Loss(int(sums[0]), float(sums[1]), float(sums[2]), int(sums[3]), gradient, curvature.reshape(-1, numbers))


def fit_in_memory(
    parts: list[Pixels],
    start: Float64[np.ndarray, " P"],
    penalty: Float64[np.ndarray, " P"],
    bounds: tuple[float, float],
    *,
    brier: float = 0.0,
    tolerance: float = 1e-12,
) -> tuple[Array, Array]:
    """Return the point of least mean loss plus `penalty / 2` times squares, and the curvature there (Newton's method).

    An infinite penalty keeps a number where it starts. A step that does not decrease the loss is halved; the last step
    is the one that promises less than twice the `tolerance` of the mean loss.
    """
    free = np.flatnonzero(np.isfinite(penalty))
    cost = np.where(np.isfinite(penalty), penalty, 0.0)

    def at(point: Array) -> tuple[float, Array, Array]:
        sums = [
            loss_sums(part.logits, part.labels, part.features, point, bounds, brier=brier, curvature=True)
            for part in parts
        ]
        found = read_loss(np.sum(sums, axis=0), point.size)
        value = found.value / found.pixels + (cost * point**2).sum() / 2
        gradient = found.gradient / found.pixels + cost * point
        return float(value), gradient, found.curvature / found.pixels + np.diag(cost)

    point = np.array(start, dtype=np.float64)
    value, gradient, curvature = at(point)
    for _ in range(_STEPS):
        rigid = curvature[np.ix_(free, free)]
        rigid = rigid + (1e-10 * np.trace(rigid) / max(len(free), 1) + 1e-14) * np.eye(len(free))
        step = np.zeros_like(point)
        step[free] = -np.linalg.solve(rigid, gradient[free])
        last = -(gradient @ step) <= 2 * tolerance
        for halving in range(_HALVINGS):
            trial = point + step / 2**halving
            found = at(trial)
            if found[0] < value:
                break
        else:
            break  # no further decrease
        point, (value, gradient, curvature) = trial, found
        if last:
            break
    return point, curvature
