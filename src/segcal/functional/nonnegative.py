"""Minima of convex functions of nonnegative numbers, for objectives that are expensive to evaluate.

Each evaluation gives a gradient. The next point is the minimum, over nonnegative numbers, of the quadratic model with
that gradient and a curvature that starts as the one of a sample and is corrected by what the gradients show (BFGS). The
problem may consist of several that share no number; they are solved side by side, in the same evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.linalg import cho_factor, cho_solve

from segcal.functional.lbfgs import Block
from segcal.types import Array

_INNER = 60
_SMALL = 1e-9  # of the mean curvature, added to directions that have none


@dataclass(frozen=True)
class NonnegativeMinimum:
    """Points of least value, one row for each problem."""

    point: Float64[np.ndarray, "E P"]
    value: float
    """Summed over the problems."""
    evaluations: int
    promised: float
    """Decrease that the last model still promised."""
    converged: bool


def minimise_nonnegative(
    at: Callable[[Float64[np.ndarray, "E P"]], tuple[Float64[np.ndarray, " E"], Float64[np.ndarray, "E P"]]],
    start: Float64[np.ndarray, "E P"],
    curvature: Sequence[Sequence[Block]],
    *,
    evaluations: int,
    tolerance: float,
) -> NonnegativeMinimum:
    """Return the least value over nonnegative points; the search ends when less than `tolerance` is promised.

    Args:
        at: Maps points to the value and the gradient of each problem.
        start: Where to begin, one row for each problem.
        curvature: Of each problem, in blocks between which it is taken to be 0.
        evaluations: How many are allowed.
        tolerance: Of the value summed over all problems.
    """
    models = [[Block(block.index, _regular(block.curvature)) for block in blocks] for blocks in curvature]
    point = np.maximum(start, 0.0)
    value, gradient = at(point)
    share = np.ones(len(point))
    used, promised = 1, np.inf
    while used < evaluations:
        target = np.stack([_least(*problem) for problem in zip(models, point, gradient, strict=True)])
        move = target - point
        gains = -(gradient * move).sum(axis=1) / 2
        promised = float(gains.clip(min=0).sum())
        if promised <= tolerance:
            break
        trial = point + share[:, np.newaxis] * move
        new, slope = at(trial)
        used += 1
        better = (new <= value - 1e-4 * share * gains) | (gains <= tolerance / len(point))
        for e in np.flatnonzero(new < np.inf):
            models[e] = _corrected(models[e], trial[e] - point[e], slope[e] - gradient[e])
        point = np.where(better[:, np.newaxis], trial, point)
        gradient = np.where(better[:, np.newaxis], slope, gradient)
        value = np.where(better, new, value)
        share = np.where(better, 1.0, share / 2)
    return NonnegativeMinimum(point, float(value.sum()), used, promised, promised <= tolerance)


def _least(blocks: Sequence[Block], point: Array, gradient: Array) -> Array:
    """Return the least point of the quadratic model of one problem."""
    result = point.copy()
    for block in blocks:
        result[block.index] = least_quadratic(block.curvature, gradient[block.index], point[block.index])
    return result


def least_quadratic(
    curvature: Float64[np.ndarray, "P P"], gradient: Float64[np.ndarray, " P"], start: Float64[np.ndarray, " P"]
) -> Float64[np.ndarray, " P"]:
    """Return the nonnegative y of least `g' (y - x) + (y - x)' H (y - x) / 2`, by Newton steps on the free numbers.

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
        free = np.flatnonzero((y > 0) | (slope < -scale))
        if not free.size or np.abs(slope[free]).max() <= scale:
            break
        step = np.zeros_like(y)
        step[free] = -cho_solve(cho_factor(curvature[np.ix_(free, free)]), slope[free])
        for halving in range(40):
            trial = np.maximum(y + step / 2**halving, 0.0)
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
