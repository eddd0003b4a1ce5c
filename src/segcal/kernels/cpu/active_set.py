"""The active set method on the CPU: one small system after another, without a call of a library for each."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.constants import SETTLED
from segcal.kernels.cpu.compiling import as_numpy, compiled
from segcal.types import Array


@compiled
def _solution_among(matrix: Array, kept: Array) -> Array:
    """Solve `M x = 1` among the kept rows and columns by Cholesky's method; 0 elsewhere."""
    rows = np.flatnonzero(kept)
    n, lower, y, x = len(rows), np.zeros((len(rows), len(rows))), np.empty(len(rows)), np.zeros(len(kept))
    for i in range(n):
        for j in range(i + 1):
            rest = matrix[rows[i], rows[j]] - (lower[i, :j] * lower[j, :j]).sum()
            lower[i, j] = np.sqrt(rest) if i == j else rest / lower[j, j]
        y[i] = (1 - (lower[i, :i] * y[:i]).sum()) / lower[i, i]
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            y[i] -= lower[j, i] * x[rows[j]]
        x[rows[i]] = y[i] / lower[i, i]
    return x


@compiled
def _without_negative(matrices: Array, found: Array) -> None:
    """Replace the solutions with a negative entry, in place."""
    count, n = found.shape
    for v in range(count):
        if found[v].min() >= 0:
            continue
        matrix, x, passive = matrices[v], np.zeros(n), np.zeros(n, np.bool_)
        while True:
            best, steepest = -1, SETTLED
            for i in range(n):
                slope = 1 - (matrix[i] * x).sum()
                if not passive[i] and slope > steepest:
                    best, steepest = i, slope
            if best < 0:
                break
            passive[best] = True
            while True:
                trial = _solution_among(matrix, passive)
                step, blocked = 1.0, False
                for i in range(n):
                    if passive[i] and trial[i] <= 0:
                        step, blocked = min(step, x[i] / (x[i] - trial[i])), True
                x = x + step * (trial - x) if blocked else trial
                if not blocked:
                    break
                passive &= x > SETTLED
                x[~passive] = 0
        found[v] = x


def nonnegative_solutions(matrices: Tensor, free: Tensor) -> Tensor:
    """Twin of `segcal.functional.active_set.nonnegative_solutions`."""
    found = as_numpy(free).copy()
    _without_negative(as_numpy(matrices), found)
    return torch.from_numpy(found)
