"""Temperatures whose logarithm is linear in features of a pixel: their loss, its gradient and its curvature.

With `u = log T = point . (1, features, class indicator)`, `a = 1 / T`, `p = softmax(a z)` and the mean `m = p . z`,

    d NLL / d u = a (z_y - m),          d^2 NLL / d u^2 = a^2 v - a (z_y - m)    with    v = sum_k p_k (z_k - m)^2,
    d p_k / d u = -a p_k (z_k - m),     so that for the Brier score |p - y|^2 both follow by the chain rule.

Curvatures are exact, so that Newton's method converges quadratically; that of a pixel may be negative. Where a bound
clips the temperature, slope and curvature are 0. A floor is soft (`functional.floor`), so that pixels below it keep a
slope.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from scipy.linalg import cho_factor, cho_solve
from torch import Tensor

from segcal.functional.floor import NO_FLOOR, Floor, soft_floor
from segcal.kernels.constants import LOSS_HEAD
from segcal.kernels.dispatch import accelerated
from segcal.types import Array

_EVALUATIONS = 40
_TRUSTED = 0.1  # of the gain that a step promises, which it must deliver to be taken
_DAMPING = 0.1  # of the curvature's diagonal, added to it after a step that did not deliver


@dataclass(frozen=True)
class Loss:
    """Sums over pixels; sums of two sets of pixels add."""

    pixels: int
    nll: float
    value: float
    """NLL plus the weighted Brier score."""
    bounded: int
    """FeaturePixels whose temperature a bound clips."""
    raised: int
    """FeaturePixels whose temperature would be below the floor without it."""
    gradient: Array
    curvature: Array


@dataclass(frozen=True)
class FeaturePixels:
    """FeaturePixels with their features, in memory; fold k is the range from `edges[k]` to `edges[k + 1]`."""

    logits: Float[Tensor, "L N"]
    labels: Int64[Tensor, " N"]
    features: Float[Tensor, "F N"]
    edges: tuple[int, ...]

    def part(self, first: int, last: int) -> FeaturePixels:
        """Return the folds `first` to `last - 1` as one."""
        at = slice(self.edges[first], self.edges[last])
        return FeaturePixels(
            self.logits[:, at].contiguous(),
            self.labels[at].contiguous(),
            self.features[:, at].contiguous(),
            (0, at.stop - at.start),
        )

    def thinned(self, count: int) -> FeaturePixels:
        """Return about `count` of the pixels, evenly spaced in every fold."""
        step = max(1, -(-len(self.labels) // count))
        kept = [torch.arange(first, last, step) for first, last in pairwise(self.edges)]
        index = torch.cat(kept)
        edges = (0, *np.cumsum([len(part) for part in kept]).tolist())
        return FeaturePixels(
            self.logits[:, index].contiguous(), self.labels[index], self.features[:, index].contiguous(), edges
        )


@accelerated
def loss_sums(
    logits: Float[Tensor, "L N"],
    labels: Int64[Tensor, " N"],
    features: Float[Tensor, "F N"],
    point: Float64[np.ndarray, " P"],
    bounds: tuple[float, float],
    *,
    floor: Floor = NO_FLOOR,
    brier: float = 0.0,
    curvature: bool = False,
) -> Array:
    """Return one row of sums, to be added up and read by `read_loss`; pixels with a negative label are skipped.

    The point holds the intercept, a weight for each feature and an offset for each predicted class. A floor is applied
    where it is soft; a hard one is a bound.
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
    under, gate, turn = torch.zeros_like(exponent), torch.ones_like(exponent), torch.zeros_like(exponent)
    if floor.softness > 0:
        above = exponent - float(np.log(floor.value))
        under, gate = (above < 0).double(), torch.sigmoid(above / floor.softness)
        turn = gate * (1 - gate) / floor.softness
        exponent = soft_floor(exponent, *exponent.new_tensor(floor))
    low, high = (float(np.log(bound)) for bound in bounds)
    inside = ((exponent > low) & (exponent < high)).double()
    cold = (-exponent.clamp(low, high)).exp()
    below = z - z.amax(dim=0)
    log_probs = torch.log_softmax(cold * below, dim=0)
    probs = log_probs.exp()
    apart = below - (probs * below).sum(dim=0)
    nll = -log_probs.gather(0, truth).squeeze(0)
    variance = (probs * apart.square()).sum(dim=0)
    slope = cold * apart.gather(0, truth).squeeze(0)
    bend = cold.square() * variance - slope
    moved = -cold * probs * apart
    turned = cold * probs * (apart + cold * (apart.square() - variance))
    off = probs.scatter_add(0, truth, -torch.ones_like(truth, dtype=z.dtype))
    value = nll + brier * off.square().sum(dim=0)
    slope = slope + 2 * brier * (off * moved).sum(dim=0)
    bend = bend + 2 * brier * (moved.square() + off * turned).sum(dim=0)
    bend = inside * (gate.square() * bend + turn * slope)
    slope = inside * gate * slope
    head = [torch.ones_like(nll).sum(), nll.sum(), value.sum(), (1 - inside).sum(), under.sum()]
    parts = [torch.stack(head), known @ slope]
    if curvature:
        parts.append(((known * bend) @ known.T).reshape(-1))
    return torch.cat(parts).cpu().numpy()


def read_loss(sums: Array, numbers: int) -> Loss:
    """Split a row of sums into its parts, for a point of so many numbers."""
    gradient, curvature = sums[LOSS_HEAD : LOSS_HEAD + numbers], sums[LOSS_HEAD + numbers :]
    pixels, nll, value, bounded, raised = sums[:LOSS_HEAD].tolist()
    return Loss(int(pixels), nll, value, int(bounded), int(raised), gradient, curvature.reshape(-1, numbers))


class MeanLoss:
    """Mean loss of pixels in memory with its derivatives; the last point is remembered, since searches start there."""

    def __init__(
        self, parts: list[FeaturePixels], bounds: tuple[float, float], *, floor: Floor = NO_FLOOR, brier: float = 0.0
    ) -> None:
        self.parts, self.bounds, self.floor, self.brier = parts, bounds, floor, brier
        self._last: tuple[bytes, Loss] | None = None

    def at(self, point: Float64[np.ndarray, " P"], cost: Float64[np.ndarray, " P"]) -> tuple[float, Array, Array]:
        """Return value, gradient and curvature of the mean loss plus `cost / 2` times squares."""
        key = point.tobytes()
        if self._last is None or self._last[0] != key:
            settings: dict[str, Any] = {"floor": self.floor, "brier": self.brier, "curvature": True}
            rows = [
                loss_sums(part.logits, part.labels, part.features, point, self.bounds, **settings)
                for part in self.parts
            ]
            self._last = key, read_loss(np.sum(rows, axis=0), point.size)
        found = self._last[1]
        value = found.value / found.pixels + (cost * point**2).sum() / 2
        return (
            float(value),
            found.gradient / found.pixels + cost * point,
            found.curvature / found.pixels + np.diag(cost),
        )


def fit_in_memory(
    loss: MeanLoss,
    start: Float64[np.ndarray, " P"],
    penalty: Float64[np.ndarray, " P"],
    *,
    tolerance: float = 1e-6,
) -> tuple[Array, Array]:
    """Return the point of least mean loss plus `penalty / 2` times squares, and the last point that was evaluated.

    A penalty of infinity keeps a number at its start. Newton's method: the search ends with the first step that
    promises less than the `tolerance` of the mean loss, and takes it: it leaves an error of the order of its square. A
    step that does not deliver what it promises is not taken, and the next one is shorter (Levenberg and Marquardt):
    with a floor, a long step can carry all pixels below it, where nothing has a slope.
    """
    free = np.flatnonzero(np.isfinite(penalty))
    cost = np.where(np.isfinite(penalty), penalty, 0.0)
    point, step, damping = np.array(start, dtype=np.float64), np.zeros(len(start)), 0.0
    value, gradient, curvature = loss.at(point, cost)
    for _ in range(_EVALUATIONS):
        step[free] = newton_step(curvature[np.ix_(free, free)], gradient[free], damping)
        promised = -float(gradient @ step) / 2
        if promised <= tolerance:
            break
        found = loss.at(point + step, cost)
        if value - found[0] >= _TRUSTED * promised:
            point, (value, gradient, curvature) = point + step, found
            damping = damping / 4 if damping > _DAMPING else 0.0
        else:
            damping = max(4 * damping, _DAMPING)
    return point + step, point


def newton_step(curvature: Float64[np.ndarray, "P P"], gradient: Float64[np.ndarray, " P"], damping: float) -> Array:
    """Return the step to the minimum of the quadratic model, with `damping` times its diagonal added.

    Directions of negative curvature count with its absolute value, so that every step descends.
    """
    unit = np.sqrt(np.abs(np.diag(curvature))) + 1e-7
    scaled, slope = curvature / np.outer(unit, unit), gradient / unit
    try:
        step = cho_solve(cho_factor(scaled + (damping + 1e-10) * np.eye(len(unit))), slope)
    except np.linalg.LinAlgError:
        values, axes = np.linalg.eigh(scaled)
        step = axes @ (axes.T @ slope / (np.abs(values) + damping + 1e-10))
    return -step / unit  # type: ignore[no-any-return]
