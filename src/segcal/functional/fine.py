"""Readings of the fine histogram of 65,536 cells: errors for any number of bins, and for none.

Each cell holds pixels, right pixels and summed confidence, so its pixels may stand at their mean confidence: a cell is
at most 2**-11 wide, and 0.1 % of `1 - confidence` near 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.fft import dct, idct

from segcal.functional.binning import Histogram
from segcal.types import Array

_GRID = 1 << 14  # places at which the smoothed gap is computed


def ece_by_bins(cells: Histogram, bins: Sequence[int]) -> Array:
    """ECE with each number of equal bins, from a fine histogram `[L, 65536]`; NaN where there is no pixel.

    A pixel can only be in the wrong bin if an edge cuts its cell.
    """
    count, residual, place = _occupied(cells)
    if not count.size:
        return np.full(len(bins), np.nan)
    found = []
    for many in bins:
        edges = np.arange(1, many) / many  # right-closed, as everywhere
        gaps = np.bincount(np.searchsorted(edges, place, side="left"), residual, minlength=many)
        found.append(np.abs(gaps).sum() / count.sum())
    return np.array(found)


def smooth_ece(cells: Histogram) -> float:
    """Smooth calibration error of Błasiok and Nakkiran (2023), from a fine histogram `[L, 65536]`.

    The residuals (right or not, less confidence) are smoothed over the confidence by a Gaussian that is reflected at 0
    and 1, and the absolute value of the result is integrated. It falls as the width grows; the error is the width at
    which both are equal, so that there is no width to choose.
    """
    count, residual, place = _occupied(cells)
    if not count.size:
        return float("nan")
    waves = dct(_on_grid(residual / count.sum(), place), norm="ortho")
    decay = (np.pi * np.arange(_GRID)) ** 2 / 2

    def error(width: float) -> float:
        # cosines are the reflected waves, and a Gaussian damps each by exp(-(pi k width)^2 / 2)
        return float(np.abs(idct(waves * np.exp(-decay * width**2), norm="ortho")).sum())

    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return (low + high) / 2


def _occupied(cells: Histogram) -> tuple[Array, Array, Array]:
    """Pixels, right pixels less summed confidence, and mean confidence of the cells that hold pixels."""
    count, hit, total = (field.numpy().sum(axis=0) for field in cells)
    held = np.flatnonzero(count)
    return count[held], hit[held] - total[held], total[held] / count[held]


def _on_grid(weights: Array, places: Array) -> Array:
    """Weights shared between the two nearest of equally spaced places (j + 1/2) / G, so that their mean place stays."""
    position = np.clip(places * _GRID - 0.5, 0, _GRID - 1)
    lower = np.minimum(position.astype(np.int64), _GRID - 2)
    share = position - lower
    grid = np.bincount(lower, weights * (1 - share), minlength=_GRID)
    return grid + np.bincount(lower + 1, weights * share, minlength=_GRID)
