"""Minimise smooth convex functions that are expensive to evaluate, from the curvature of a small sample.

Of any numbers, by L-BFGS with a metric that makes them round: with the curvature `C C'`, the change of variables `C' x`
turns level sets into spheres, as far as the sample is right. There the first step of L-BFGS is a Newton step, and half
the squared length of the gradient is what is still to be gained, so that one tolerance serves all problems.

Of numbers above a bound, by the minimum of a quadratic model over them, whose curvature is known (Newton) or corrected
by what the gradients show (BFGS). The problem may consist of several that share no number; they are solved side by
side, in the same evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from segcal.types import Array

Objective = Callable[[Array], tuple[float, Array]]
"""From a point to the value and the gradient there."""

_TOLERANCE = 1e-7  # of each entry of the rounded gradient: 5e-15 of value is still to be gained
_GOOD_ENOUGH = 1e-5  # what counts as converged where rounding ends the search
_RIDGE = 1e-8  # of the mean curvature, added to directions that have none
_RIDGES = 12  # times that a ridge a hundred times larger is tried
_INNER = 60  # steps of the search for the minimum of a quadratic model
_SMALL = 1e-9  # as `_RIDGE`, for numbers above a bound


@dataclass(frozen=True)
class Block:
    """The curvature among some of the variables; between blocks it is taken to be 0."""

    index: Array
    curvature: Array


@dataclass(frozen=True)
class Minimum:
    """A point of least value, with how it was found.

    Attributes:
        point: The point; one row for each problem if there are several.
        value: The value there, summed over the problems.
        evaluations: How often the function was evaluated.
        slope: Largest entry of the rounded gradient, or what the last model of numbers above a bound still promised.
        converged: Whether the search ended by its tolerance.
    """

    point: Array
    value: float
    evaluations: int
    slope: float
    converged: bool


class Preconditioner:
    """The change of variables that a curvature calls for."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        # absolute values: rounding can make the diagonal of enormous features negative
        mean = float(np.abs(np.concatenate([np.diag(block.curvature) for block in blocks])).mean())
        self._factors = [(block.index, _factor(block.curvature, _RIDGE * mean + 1e-14)) for block in blocks]

    def rounded(self, gradient: Array) -> Array:
        """A gradient in the new variables."""
        result = np.empty_like(gradient)
        for index, factor in self._factors:
            result[index] = solve_triangular(factor, gradient[index], lower=True)
        return result

    def step(self, rounded: Array) -> Array:
        """A step in the new variables as one in the old."""
        result = np.empty_like(rounded)
        for index, factor in self._factors:
            result[index] = solve_triangular(factor, rounded[index], lower=True, trans="T")
        return result


def minimise(
    objective: Objective, start: Array, metric: Preconditioner, *, evaluations: int, tolerance: float = _TOLERANCE
) -> Minimum:
    """The least value near `start`, with few evaluations; the last when no rounded slope exceeds `tolerance`."""
    found: dict[bytes, tuple[float, Array]] = {}  # the start is evaluated here and asked for again by scipy

    def at(point: Array) -> tuple[float, Array]:
        key = point.tobytes()
        if key not in found:
            found[key] = objective(point)
        return found[key]

    value, gradient = at(start)
    slope = metric.rounded(gradient)
    length = float(np.linalg.norm(slope))
    if np.abs(slope).max(initial=0.0) <= tolerance:
        return Minimum(start, value, len(found), float(np.abs(slope).max(initial=0.0)), converged=True)

    # scipy's first step has length 1: in units of the gradient, that is the Newton step
    def scaled(y: Array) -> tuple[float, Array]:
        value, gradient = at(start + metric.step(length * y))
        return value / length**2, metric.rounded(gradient) / length

    result = minimize(
        scaled,
        np.zeros_like(start),
        jac=True,
        method="L-BFGS-B",
        options={"maxfun": evaluations, "ftol": 0.0, "gtol": tolerance / length, "maxcor": 20},
    )
    point = start + metric.step(length * result.x)
    value, gradient = at(point)
    largest = float(np.abs(metric.rounded(gradient)).max())
    return Minimum(point, value, len(found), largest, converged=largest <= _GOOD_ENOUGH)


def _factor(curvature: Array, ridge: float) -> Array:
    """Return the Cholesky factor, with more ridge where rounding has made the curvature indefinite."""
    unit = np.eye(len(curvature))
    for power in range(_RIDGES):
        try:
            return cholesky(curvature + ridge * 100.0**power * unit, lower=True)
        except (np.linalg.LinAlgError, ValueError):  # ValueError: sums of enormous features have overflowed
            continue
    return np.sqrt(ridge) * unit if np.isfinite(ridge) else unit


Problems = Callable[
    [Float64[np.ndarray, "E P"]],
    tuple[Float64[np.ndarray, " E"], Float64[np.ndarray, "E P"], Sequence[Sequence[Block]] | None],
]
"""From one point for each problem to the value and the gradient of each, and its curvature where that is known."""


def minimise_above(
    at: Problems,
    start: Float64[np.ndarray, "E P"],
    curvature: Sequence[Sequence[Block]] | None = None,
    *,
    evaluations: int,
    tolerance: float,
    lower: float = 0.0,
) -> Minimum:
    """Return the least value over points that are not below a bound.

    The search ends when less than `tolerance` is promised. The problems share no number, so each takes its own steps,
    halved until its value falls.

    Args:
        at: The problems.
        start: Where to begin, one row for each problem.
        curvature: Of each problem at the start, in blocks between which it is taken to be 0, where `at` has none.
        evaluations: How many are allowed.
        tolerance: Of the value summed over all problems.
        lower: The bound.
    """
    point = np.maximum(start, lower)
    value, gradient, exact = at(point)
    known = (curvature if exact is None else exact) or ()
    models = [[Block(block.index, _regular(block.curvature)) for block in blocks] for blocks in known]
    share = np.ones(len(point))
    used, promised = 1, np.inf
    while used < evaluations:
        target = np.stack([_least(*problem, lower) for problem in zip(models, point, gradient, strict=True)])
        move = target - point
        gains = -(gradient * move).sum(axis=1) / 2
        promised = float(gains.clip(min=0).sum())
        if promised <= tolerance:
            break
        trial = point + share[:, np.newaxis] * move
        new, slope, exact = at(trial)
        used += 1
        better = (new <= value - 1e-4 * share * gains) | (gains <= tolerance / len(point))
        for e in np.flatnonzero(new < np.inf if exact is None else better).tolist():
            seen = trial[e] - point[e], slope[e] - gradient[e]
            models[e] = _corrected(models[e], *seen) if exact is None else list(exact[e])
        point = np.where(better[:, np.newaxis], trial, point)
        gradient = np.where(better[:, np.newaxis], slope, gradient)
        value = np.where(better, new, value)
        share = np.where(better, 1.0, share / 2)
    return Minimum(point, float(value.sum()), used, promised, promised <= tolerance)


def _least(blocks: Sequence[Block], point: Array, gradient: Array, lower: float) -> Array:
    """Return the least point of the quadratic model of one problem."""
    result = point.copy()
    for block in blocks:
        result[block.index] = least_quadratic(block.curvature, gradient[block.index], point[block.index], lower)
    return result


def least_quadratic(
    curvature: Float64[np.ndarray, "P P"],
    gradient: Float64[np.ndarray, " P"],
    start: Float64[np.ndarray, " P"],
    lower: float = 0.0,
) -> Float64[np.ndarray, " P"]:
    """Return the y of least `g' (y - x) + (y - x)' H (y - x) / 2` above a bound, by Newton steps on the free numbers.

    Examples:
        >>> least_quadratic(np.eye(2), np.array([1.0, -1.0]), np.zeros(2))
        array([0., 1.])
    """
    y = start.copy()
    slope = gradient.copy()

    def model(at: Array) -> float:
        move = at - start
        return float(gradient @ move + move @ curvature @ move / 2)

    value, scale = model(y), 1e-12 * (1 + float(np.abs(gradient).max(initial=0.0)))
    for _ in range(_INNER):
        free = np.flatnonzero((y > lower) | (slope < -scale))
        if not free.size or np.abs(slope[free]).max() <= scale:
            break
        step = np.zeros_like(y)
        step[free] = -cho_solve(cho_factor(curvature[np.ix_(free, free)]), slope[free])
        for halving in range(40):
            trial = np.maximum(y + step / 2**halving, lower)
            if (found := model(trial)) < value:
                break
        else:
            break
        y, value = trial, found
        slope = gradient + curvature @ (y - start)
    return y


def _regular(curvature: Array) -> Array:
    mean = float(np.diag(curvature).mean())
    return curvature + (_SMALL * mean + 1e-14) * np.eye(len(curvature))


def _corrected(blocks: Sequence[Block], step: Array, change: Array) -> list[Block]:
    """Return the curvature with the correction of BFGS, which gives it the change of slope that was seen."""
    result = []
    for block in blocks:
        s, y = step[block.index], change[block.index]
        along = block.curvature @ s
        expected, seen = float(s @ along), float(s @ y)
        if expected > 0 and seen > 1e-8 * expected:  # convex, up to rounding
            update = np.outer(y, y) / seen - np.outer(along, along) / expected
            result.append(Block(block.index, block.curvature + update))
        else:
            result.append(block)
    return result
