"""Optimal temperatures by root finding, and the state of confidence (appendix "Temperature Scaling from Entropy").

The negative log-likelihood is convex in the inverse temperature, so its slope has at most one root (Theorem 1):
`sum z softmax(a z) = sum z[label]`. The inverse temperature is 0 where the label's logit is not above the mean of all
logits, infinite where the label has the largest logit, and the root otherwise; at the root, NLL equals entropy
(Theorem 4). The same holds for a data set, an image and a pixel, only the sums differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Float32, Float64, Int, Int64
from torch import Tensor

from segcal.functional.pixels import likelihood_sums, pixel_statistics

State = Literal["overconfident", "underconfident", "balanced"]

_STEPS = 200
_TOLERANCE = 1e-9  # of the last relative Newton step; the error after it is of the order of its square
_CHUNK = 1 << 18
"""Scores converted to float64 at a time (2 MiB), which stay in the cache."""


class Likelihood(NamedTuple):
    """Sums over pixels at one inverse temperature; sums of two sets of pixels add."""

    pixels: float
    nll: float
    slope: float
    curvature: float
    slope_at_zero: float
    slope_at_infinity: float

    def nll_near(self, distance: float) -> float:
        """Return the NLL at an inverse temperature that is so little away that two derivatives describe it."""
        return self.nll + distance * self.slope + distance**2 * self.curvature / 2


class Root(NamedTuple):
    """An inverse temperature, and how it was found."""

    inverse_temperature: float
    steps: int
    converged: bool


def likelihood(logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"], inverse_temperature: float) -> Likelihood:
    """Return the NLL of one image and its derivatives in the inverse temperature; negative labels are skipped."""
    sums = likelihood_sums(logits.reshape(logits.shape[0], -1), labels.reshape(-1), inverse_temperature)
    return Likelihood(*sums.tolist())


def optimal_inverse_temperature(at: Callable[[float], Likelihood], guess: Callable[[], float] | None = None) -> Root:
    """Return the inverse temperature of least NLL; `at` returns the summed likelihood at an inverse temperature.

    Safeguarded Newton steps, usually five to seven from 1, and two or three from a good guess, which is asked for after
    the first evaluation, at 1.
    """

    def sums(alphas: Tensor) -> Tensor:
        return torch.tensor([at(float(alphas))], dtype=torch.float64)

    start = None if guess is None else lambda: torch.tensor([guess()], dtype=torch.float64)
    alphas, steps, converged = optimal_inverse_temperatures(sums, 1, start)
    return Root(float(alphas), steps, converged)


def optimal_inverse_temperatures(
    at: Callable[[Float64[Tensor, " N"]], Float64[Tensor, "N 6"]],
    count: int,
    guess: Callable[[], Float64[Tensor, " N"]] | None = None,
) -> tuple[Float64[Tensor, " N"], int, bool]:
    """Return those of N sets of pixels, the number of steps, and whether all converged.

    `at` returns the sums of `Likelihood` of each set at its own inverse temperature. A set without pixels has 1.
    """
    ones = torch.ones(count, dtype=torch.float64)
    start = at(ones)
    pixels, _, _, _, at_zero, at_infinity = start.unbind(dim=1)
    fixed = torch.where(at_infinity <= 0, torch.inf, torch.nan).double()
    # 0 takes precedence: where all logits are equal, both hold
    fixed = torch.where(pixels == 0, 1.0, torch.where(at_zero >= 0, 0.0, fixed))
    free = fixed.isnan()
    if not free.any():
        return fixed, 1, True

    def derivatives(alphas: Tensor) -> tuple[Tensor, Tensor]:
        found = start if (alphas == 1.0).all() else at(alphas)
        return torch.where(free, found[:, 2], 0.0), torch.where(free, found[:, 3], 1.0)

    roots, steps, converged = root_of_increasing(derivatives, ones if guess is None else guess())
    return torch.where(free, roots, fixed), steps + (guess is not None), converged


def root_of_increasing(
    derivatives: Callable[[Float64[Tensor, " N"]], tuple[Float64[Tensor, " N"], Float64[Tensor, " N"]]],
    start: Float64[Tensor, " N"],
) -> tuple[Float64[Tensor, " N"], int, bool]:
    """Return roots in (0, infinity) of N increasing functions from values and slopes; steps; whether all converged."""
    low, high = torch.zeros_like(start), torch.full_like(start, torch.inf)
    x = start
    for step in range(1, _STEPS + 1):
        value, slope = derivatives(x)
        low, high = torch.where(value <= 0, x, low), torch.where(value >= 0, x, high)
        newton = x - value / slope
        middle = torch.where(torch.isinf(high), 4 * x, torch.where(low == 0, high / 4, (low * high).sqrt()))
        inside = (newton >= low) & (newton <= high)
        following = torch.where(value == 0, x, torch.where(inside, newton, middle))
        done = (following - x).abs() <= _TOLERANCE * x
        x = following
        if done.all():
            return x, step, True
    return x, _STEPS, False


def pixel_inverse_temperature(logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"]) -> Float64[Tensor, "*S"]:
    """Return the inverse temperature of least NLL at each pixel (LTS in Theorem 1); NaN where the label is negative.

    Examples:
        >>> z = torch.tensor([[3.0, 3.0, 3.0], [0.0, 0.0, 0.0], [2.0, 2.0, 2.0]])
        >>> pixel_inverse_temperature(z, torch.tensor([0, 1, 2])).round(decimals=3)
        tensor([   inf, 0.0000, 0.2310], dtype=torch.float64)
    """
    flat = labels.reshape(-1)
    valid = (flat >= 0).nonzero().squeeze(1)
    z = logits.reshape(logits.shape[0], -1)[:, valid].double()
    below = z - z.amax(dim=0)
    truth = below.gather(0, flat[valid].unsqueeze(0)).squeeze(0)
    alpha = torch.where(truth == 0, torch.inf, 0.0).double()
    alpha[truth <= below.mean(dim=0)] = 0.0
    inner = ((truth < 0) & (truth > below.mean(dim=0))).nonzero().squeeze(1)
    alpha[inner] = _pixel_roots(below[:, inner], truth[inner])
    result = torch.full_like(flat, torch.nan, dtype=torch.float64)
    result[valid] = alpha
    return result.view(labels.shape)


def likelihood_slopes(
    logits: Float[Tensor, "L N"], labels: Int[Tensor, " N"], lowest: float, octaves: int
) -> Float32[Tensor, "steps N"]:
    """Return z_label - E[z] at temperatures from `lowest` on, half an octave apart; 0 where the label is negative.

    Two exponentials for each score, squared again and again, give those of all temperatures.

    Examples:
        >>> likelihood_slopes(torch.tensor([[1.0], [0.0]]), torch.tensor([0]), 1.0, 1)[:, 0]  # 1 / (1 + exp(1 / T))
        tensor([0.2689, 0.3302, 0.3775])
    """
    steps, count = 2 * octaves + 1, labels.numel()
    result = torch.empty(steps, count, dtype=torch.float32, device=logits.device)
    chunk = max(1, _CHUNK // len(logits))
    for start in range(0, count, chunk):
        own, truth = logits[:, start : start + chunk].double(), labels[start : start + chunk]
        below = own - own.amax(dim=0)
        right = below.gather(0, truth.clamp(min=0).long().unsqueeze(0))[0]
        for last in (steps - 1, steps - 2):
            power = torch.exp(below / (lowest * 2 ** (last / 2)))
            for k in range(last, -1, -2):
                mean = (power * below).sum(dim=0) / power.sum(dim=0)
                result[k, start : start + chunk] = (right - mean) * (truth >= 0)
                power *= power
    return result


def confidence_state(nll: float, entropy: float, *, tolerance: float = 1e-6) -> State:
    """Return "overconfident", "underconfident" or "balanced": mean NLL above, below or equal to mean entropy.

    Equal means within `tolerance` nats, the precision of float32 logits.

    Examples:
        >>> confidence_state(0.5, 0.2)
        'overconfident'
    """
    if abs(nll - entropy) <= tolerance:
        return "balanced"
    return "overconfident" if nll > entropy else "underconfident"


def confidence_excess(logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"]) -> Float64[Tensor, "*S"]:
    """Return NLL minus entropy at each pixel: positive where overconfident; NaN where the label is negative."""
    nll, entropy = nll_and_entropy(logits, labels)
    return nll - entropy


def nll_and_entropy(
    logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"]
) -> tuple[Float64[Tensor, "*S"], Float64[Tensor, "*S"]]:
    """Return NLL and entropy of each pixel in nats; NaN where the label is negative."""
    flat = labels.reshape(-1)
    _, _, nll, _, entropy = pixel_statistics(logits.reshape(logits.shape[0], -1), flat)
    first, second = (values.masked_fill(flat < 0, torch.nan).view(labels.shape) for values in (nll, entropy))
    return first, second


def _pixel_roots(below: Float64[Tensor, "L N"], truth: Float64[Tensor, " N"]) -> Float64[Tensor, " N"]:
    """Return the roots of pixels that have one; logits and the label's logit are relative to the largest."""

    def derivatives(alpha: Tensor) -> tuple[Tensor, Tensor]:
        probs = torch.softmax(alpha * below, dim=0)
        average = (probs * below).sum(dim=0)
        return average - truth, (probs * (below - average).square()).sum(dim=0)

    roots, _, _ = root_of_increasing(derivatives, torch.ones_like(truth))
    return roots
