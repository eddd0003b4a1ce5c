"""Temperatures whose logarithm is linear in features of a pixel: their loss, its gradient and its curvature.

With `u = log T = point . (1, features, class indicator)`, `a = 1 / T`, `p = softmax(a z)` and the mean `m = p . z`,

    d NLL / d u = a (z_y - m),          d^2 NLL / d u^2 = a^2 v - a (z_y - m)    with    v = sum_k p_k (z_k - m)^2,
    d p_k / d u = -a p_k (z_k - m),     so that for the Brier score |p - y|^2 both follow by the chain rule.

Curvatures are exact, so that Newton's method converges quadratically; that of a pixel may be negative. Where a bound
clips the temperature, slope and curvature are 0. A floor is soft (see `division`), so that pixels below it keep a
slope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from scipy.linalg import cho_factor, cho_solve
from torch import Tensor

from segcal.functional.division import NO_FLOOR, Floor, soft_floor
from segcal.kernels.constants import LOSS_HEAD
from segcal.kernels.dispatch import accelerated
from segcal.types import Array

_EVALUATIONS = 40
_TRUSTED = 0.1  # of the gain that a step promises, which it must deliver to be taken
_SQUARED = 1e4  # times the square of what a first step promises is left after it
_DAMPING = 0.1  # of the curvature's diagonal, added to it after a step that did not deliver


Values: TypeAlias = tuple[Float[Tensor, "L N"], Int64[Tensor, " N"], Float[Tensor, "F N"]]
"""Logits, labels and features of some pixels."""


@dataclass(frozen=True)
class Loss:
    """Sums over pixels; sums of two sets of pixels add."""

    pixels: int
    nll: float
    value: float
    """NLL plus the weighted Brier score."""
    bounded: int
    """Pixels whose temperature a bound clips."""
    raised: int
    """Pixels whose temperature would be below the floor without it."""
    gradient: Array
    curvature: Array


@dataclass(frozen=True)
class FeaturePixels:
    """Pixels with their features, in memory; fold k is the range from `edges[k]` to `edges[k + 1]`."""

    logits: Float[Tensor, "L N"]
    labels: Int64[Tensor, " N"]
    features: Float[Tensor, "F N"]
    edges: tuple[int, ...]

    @property
    def values(self) -> Values:
        """Logits, labels and features."""
        return self.logits, self.labels, self.features

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
    """Mean loss of pixels with its derivatives; the last point is remembered, since searches start there.

    Args:
        pixels: Yields logits, labels and features of all pixels, in parts, each time it is called.
        bounds: Smallest and largest temperature.
        floor: Floor under the temperatures.
        brier: Weight of the Brier score.
    """

    def __init__(
        self,
        pixels: Callable[[], Iterable[Values]],
        bounds: tuple[float, float],
        *,
        floor: Floor = NO_FLOOR,
        brier: float = 0.0,
    ) -> None:
        self.pixels, self.bounds, self.floor, self.brier = pixels, bounds, floor, brier
        self._last: tuple[bytes, Loss] | None = None

    def at(self, point: Float64[np.ndarray, " P"], *, curvature: bool = True) -> Loss:
        """Return the sums over all pixels."""
        key = point.tobytes()
        if self._last is None or self._last[0] != key:
            settings: dict[str, Any] = {"floor": self.floor, "brier": self.brier, "curvature": curvature}
            rows = (loss_sums(*values, point, self.bounds, **settings) for values in self.pixels())
            self._last = key, read_loss(sum(rows, start=np.zeros(1)), point.size)
        return self._last[1]


@dataclass(frozen=True)
class Solution:
    """A point of least penalised loss.

    Attributes:
        point: The point.
        known: The last point that was evaluated, a small step away.
        loss: Loss at the known point.
        value: Mean loss at the point, by the two derivatives at the known one.
        evaluations: Evaluations of the loss.
        converged: Whether the search ended by its tolerance.
    """

    point: Array
    known: Array
    loss: Loss
    value: float
    evaluations: int
    converged: bool


def newton(
    loss: MeanLoss,
    start: Float64[np.ndarray, " P"],
    penalty: Float64[np.ndarray, " P"],
    *,
    tolerance: float,
) -> Solution:
    """Return the point of least mean loss plus `penalty / 2` times squares, by Newton's method.

    A penalty of infinity keeps a number at its start. The last step is taken without another evaluation: what it leaves
    to gain is of the order of the square of what it promises, by a factor that the step before it has shown, and the
    search ends where that is less than the `tolerance` of the mean loss. A step that does not deliver what it promises
    is not taken, and the next one is shorter (Levenberg and Marquardt): with a floor, a long step can carry all pixels
    below it, where nothing has a slope.
    """
    free = np.flatnonzero(np.isfinite(penalty))
    cost = penalty[free]

    def value(found: Loss, at: Array) -> float:
        return found.value / found.pixels + float(cost @ at[free] ** 2) / 2

    point, step, damping = np.array(start, dtype=np.float64), np.zeros(len(start)), 0.0
    here, before = loss.at(point), np.inf
    for evaluations in range(1, _EVALUATIONS + 1):
        slope = here.gradient[free] / here.pixels + cost * point[free]
        curvature = here.curvature[np.ix_(free, free)] / here.pixels + np.diag(cost)
        step[free] = newton_step(curvature, slope, damping)
        promised = -float(slope @ step[free]) / 2
        factor = promised / before**2 if before < np.inf else _SQUARED
        if factor * promised**2 <= tolerance:
            change = here.gradient @ step + step @ here.curvature @ step / 2
            mean = float(here.value + change) / here.pixels
            return Solution(point + step, point, here, mean, evaluations, converged=True)
        trial = loss.at(point + step)
        if value(here, point) - value(trial, point + step) >= _TRUSTED * promised:
            point, here, before = point + step, trial, promised
            damping = damping / 4 if damping > _DAMPING else 0.0
        else:
            damping, before = max(4 * damping, _DAMPING), np.inf
    return Solution(point, point, here, here.value / here.pixels, _EVALUATIONS, converged=False)


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
    return -step / unit
