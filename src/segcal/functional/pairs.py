"""Margins between pairs of classes: what the predicted class says about each of its rivals.

With k the predicted class, `m_j = z_k - z_j >= 0` its margin over class j and `a = 1 / T`, the calibrated margin is

    m'_j = log(1 + exp(b_kj) (exp(a m_j) - 1)),

a softplus of `a m_j + b_kj` shifted to pass through 0: it is `a m_j` where `b_kj = 0`, it tends to `a m_j + b_kj` for
large margins, and it is 0 only where `m_j` is, so that the label stays. A negative b says "where it predicts k, it is
j more often than the scores say". The odds of j against k are a ratio without logarithms: with `q = exp(-a m_j)` and
`c = exp(b_kj)`,

    exp(-m'_j) = q / (q + c (1 - q)).

Offsets that are not positive never raise a margin, so that they keep a floor under the temperatures. The NLL separates
over the predicted classes; with `g_j = d m'_j / d b_kj = c (1 - q) / (q + c (1 - q))` its gradient is
`g_j ([y = j] - p_j)` and its curvature `g_i g_j (p_i [i = j] - p_i p_j) + [i = j] g_j (1 - g_j) ([y = j] - p_j)`, the
second part of which may be negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from segcal.functional.minimise import Block, minimise_above
from segcal.functional.ridge import Choice, FoldPath
from segcal.types import Array

_LARGEST_MARGIN = 1e30
"""Margins between two classes beyond it are all the same, and must not become infinite."""
_LARGEST_OFFSET = 80.0
"""Offsets of margins beyond it, of either sign, count as this much: their exponentials are numbers in float32."""
_LEAST_POWER = 1e-300
"""The least `exp(-margin)`, so that its logarithm is finite."""
_STEPS = 50
_TOLERANCE = 1e-7  # nats that the last step may still promise, in cross-validation


def pair_margins(
    logits: Float[Tensor, "B L *S"], temperature: Float[Tensor, "B 1 *S"], offsets: Float[Tensor, "L L"]
) -> Float[Tensor, "B L *S"]:
    """Return `z / T`, with each margin of the predicted class replaced by its calibrated one.

    Margins are taken from the winner, and none is negative: a sum of `z_j / T` and a logarithm that nearly cancel
    could be above the winner by its rounding.
    """
    winner, top = logits.max(dim=1).indices, logits.amax(dim=1, keepdim=True)
    scaled = (top - logits).clamp(max=_LARGEST_MARGIN) / temperature
    factor = offsets.clamp(-_LARGEST_OFFSET, _LARGEST_OFFSET).exp()[winner].movedim(-1, 1)
    margin = scaled + torch.log(torch.exp(-scaled) - factor * torch.expm1(-scaled))
    return top / temperature - margin.clamp(min=0)


@dataclass(frozen=True)
class PairSums:
    """Sums over the pixels predicted as each class; those of two sets of pixels add."""

    pixels: int
    nll: Float64[Tensor, " L"]
    gradient: Float64[Tensor, "L L"]
    curvature: Float64[Tensor, "L L L"]

    def __add__(self, other: PairSums) -> PairSums:
        """Return the sums over both."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return PairSums(*(mine + theirs for mine, theirs in pairs))


@dataclass(frozen=True)
class PairPixels:
    """Labelled pixels by predicted class: `exp(-a m)`, and the labels."""

    rest: tuple[Float64[Tensor, "L _"], ...]
    labels: tuple[Int64[Tensor, " _"], ...]

    @classmethod
    def of(
        cls,
        logits: Float[Tensor, "L N"],
        labels: Int64[Tensor, " N"],
        winner: Int64[Tensor, " N"],
        inverse: Float[Tensor, " N"],
    ) -> PairPixels:
        """Sort pixels by predicted class, which is given with the inverse temperature of each."""
        order = torch.where(labels >= 0, winner, len(logits)).argsort(stable=True)
        counts = torch.bincount(winner[labels >= 0], minlength=len(logits)).tolist()
        order = order[: sum(counts)]
        z, y, cold = logits[:, order].double(), labels[order], inverse[order].double()
        top = z.amax(dim=0)
        powers = torch.exp(-cold * (top - z).clamp(max=_LARGEST_MARGIN)).clamp(min=_LEAST_POWER)
        return cls(torch.split(powers, counts, dim=1), torch.split(y, counts))

    def sums(self, offsets: Float64[Tensor, "L L"]) -> PairSums:
        """Return the sums at some offsets."""
        parts = [_pair_sums(*part, k, offsets[k]) for k, part in enumerate(zip(self.rest, self.labels, strict=True))]
        nll, gradient, curvature = (torch.stack(column) for column in zip(*parts, strict=True))
        return PairSums(sum(len(labels) for labels in self.labels), nll, gradient, curvature)


def _pair_sums(
    rest: Float64[Tensor, "L N"], labels: Int64[Tensor, " N"], k: int, offsets: Float64[Tensor, " L"]
) -> tuple[Float64[Tensor, ""], Float64[Tensor, " L"], Float64[Tensor, "L L"]]:
    """Return NLL, gradient and curvature of the pixels predicted as class k."""
    grown = offsets.to(rest.device).exp().unsqueeze(1) * (1 - rest)
    odds, slope = rest / (rest + grown), grown / (rest + grown)
    slope[k] = 0.0
    total, truth = odds.sum(dim=0), labels.unsqueeze(0)
    of_total, of_truth = torch.stack([total, odds.gather(0, truth).squeeze(0)]).log().sum(dim=1)
    moved, own = slope * (odds / total), slope.gather(0, truth).squeeze(0)
    reached, bent = torch.zeros(2, len(offsets), dtype=rest.dtype, device=rest.device)
    reached.scatter_add_(0, labels, own)
    bent.scatter_add_(0, labels, own * (1 - own))
    # the sum of g^2 p of the first part, less that of g (1 - g) p of the second
    curvature = torch.diag(bent + ((2 * slope - 1) * moved).sum(dim=1)) - moved @ moved.T
    return (of_total - of_truth).cpu(), (reached - moved.sum(dim=1)).cpu(), curvature.cpu()


@dataclass(frozen=True)
class PairFit:
    """Offsets of least mean NLL plus `ridge / 2` times squares, and how they were found."""

    offsets: Float64[Tensor, "L L"]
    nll: float
    steps: int
    converged: bool


def fit_pairs(
    at: Callable[[Float64[Tensor, "L L"]], PairSums],
    start: Float64[Tensor, "L L"],
    ridge: float,
    *,
    upper: float = 0.0,
    tolerance: float = _TOLERANCE,
    steps: int = _STEPS,
) -> PairFit:
    """Return the offsets of least mean NLL plus penalty, none above `upper`, by Newton's method.

    `at` sums up all pixels at some offsets. From the same start the same offsets are found, whatever the order of
    pixels. Directions of negative curvature count with its absolute value, so that every step descends.
    """
    unit, every = torch.eye(len(start), dtype=torch.float64), np.arange(len(start))

    def problems(point: Array) -> tuple[Array, Array, list[list[Block]]]:
        """Return value, gradient and curvature of each predicted class in minus its offsets, bounded below."""
        offsets = torch.from_numpy(-point)
        sums = at(offsets)
        pixels = max(sums.pixels, 1)
        values, axes = torch.linalg.eigh(sums.curvature / pixels + ridge * unit)
        bent = (axes * values.abs().clamp(min=1e-12).unsqueeze(1)) @ axes.mT
        value = sums.nll / pixels + ridge / 2 * offsets.square().sum(dim=1)
        slope = -sums.gradient / pixels - ridge * offsets
        return value.numpy(), slope.numpy(), [[Block(every, own)] for own in bent.numpy()]

    found = minimise_above(problems, -start.numpy(), evaluations=steps, tolerance=tolerance, lower=-upper)
    nll = found.value - ridge / 2 * float((found.point**2).sum())
    return PairFit(torch.from_numpy(-found.point), nll, found.evaluations, found.converged)


Offsets: TypeAlias = Float64[Tensor, "L L"]
PairChoice: TypeAlias = Choice[float, Offsets]
PairPath: TypeAlias = FoldPath[float, Offsets]


def pair_path(
    fitted: Sequence[Sequence[PairPixels]],
    held_out: Sequence[PairPixels],
    among: Sequence[float],
    *,
    upper: float = 0.0,
) -> PairPath:
    """Fit offsets under each ridge, infinity for none, without each fold, and measure the fold left out.

    Of each fold `fitted` holds the others and `held_out` the fold itself, at temperatures fitted without it.
    """
    totals = np.zeros((len(among), len(held_out), 3))
    offsets: list[list[Tensor]] = [[] for _ in among]
    for fold, (parts, left) in enumerate(zip(fitted, held_out, strict=True)):
        zero = point = torch.zeros(len(left.rest), len(left.rest), dtype=torch.float64)
        for k, ridge in enumerate(among):
            if np.isfinite(ridge):
                point = fit_pairs(partial(_total, parts), point, ridge, upper=upper).offsets
            offsets[k].append(point if np.isfinite(ridge) else zero)
            sums = left.sums(offsets[k][-1])
            nll = float(sums.nll.sum())
            totals[k, fold] = sums.pixels, nll, nll
    return FoldPath(tuple(map(float, among)), totals, tuple(map(tuple, offsets)))


def strongest_pairs(offsets: Array, count: int) -> list[tuple[int, int, float]]:
    """Return the predicted class, its rival and the offset of the largest offsets in size."""
    order = np.argsort(-np.abs(offsets), axis=None, kind="stable")[:count]
    places = zip(*np.unravel_index(order, offsets.shape), strict=True)
    return [(int(k), int(j), float(offsets[k, j])) for k, j in places if offsets[k, j] != 0]


def _total(parts: Sequence[PairPixels], offsets: Float64[Tensor, "L L"]) -> PairSums:
    """Return the sums over all parts."""
    return reduce(PairSums.__add__, (part.sums(offsets) for part in parts))
