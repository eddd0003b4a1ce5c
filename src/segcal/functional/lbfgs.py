"""Minimise smooth convex functions that are expensive to evaluate: L-BFGS with a metric that makes them round.

With the curvature `C C'` of a small sample, the change of variables `C' x` turns level sets into spheres, as far as the
sample is right. There the first step of L-BFGS is a Newton step, and half the squared length of the gradient is what is
still to be gained, so that one tolerance serves all problems.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize

from segcal.types import Array

Objective = Callable[[Array], tuple[float, Array]]
"""From a point to the value and the gradient there."""

_TOLERANCE = 1e-7  # of each entry of the rounded gradient: 5e-15 of value is still to be gained
_GOOD_ENOUGH = 1e-5  # what counts as converged where rounding ends the search
_RIDGE = 1e-8  # of the mean curvature, added to directions that have none


@dataclass(frozen=True)
class Block:
    """The curvature among some of the variables; between blocks it is taken to be 0."""

    index: Array
    curvature: Array


@dataclass(frozen=True)
class Minimum:
    """A point of least value, with how it was found."""

    point: Array
    value: float
    evaluations: int
    gradient: float
    """The largest entry of the rounded gradient."""
    converged: bool


_RIDGES = 12
"""Number of times that a ridge a hundred times larger is tried."""


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
