"""Reliability histograms: a few bins of the confidence, or 65,536 cells from which any bins are read, or none.

A reliability histogram holds pixels, correct pixels and summed confidence for each predicted class and bin, in int64
and float64. The histogram of two sets of pixels together is the sum of theirs. Bins are right-closed intervals
`(j / R, (j + 1) / R]`; a confidence of 0 belongs to the first.

The cells of a fine histogram (`segcal.functional.scores.cell_of`) grow finer towards 0 and 1, and their size does not
depend on the number of pixels. Pixels of a cell may stand at their mean confidence: a cell is at most 2**-11 wide, and
0.2 % of `1 - confidence` near 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int, Int64
from torch import Tensor

from segcal.functional import counting
from segcal.kernels.constants import CELLS
from segcal.types import Array

Form = Literal["tables", "equations", "marginal"]

_GRID = 1 << 14  # positions at which the smoothed gap is computed


class Histogram(NamedTuple):
    """Pixels, correct pixels and summed confidence by class and bin, or by class and cell."""

    pixels: Int64[Tensor, "*G L R"]
    hit: Int64[Tensor, "*G L R"]
    confidence: Float64[Tensor, "*G L R"]

    def of(self, region: int | slice) -> Histogram:
        """Return the histogram of one region, or of some."""
        return Histogram(*(field[region] for field in self))


def stack(histograms: Sequence[Histogram]) -> Histogram:
    """Return the histograms of several regions as one."""
    return Histogram(*(torch.stack(fields) for fields in zip(*histograms, strict=True)))


def merge_classes(h: Histogram) -> Histogram:
    """Add up the histograms of all classes: `[*G, 1, R]`."""
    if h.pixels.shape[-2] == 1:
        return h
    return Histogram(*(field.sum(dim=-2, keepdim=True) for field in h))


def equal_edges(bins: int, device: torch.device | None = None) -> Float64[Tensor, " R1"]:
    """Return the edges 0, 1/R, ..., 1."""
    return torch.arange(bins + 1, dtype=torch.float64, device=device) / bins


class OccupiedCells(NamedTuple):
    """The cells of fine histograms `[*G, L, 65536]` that hold pixels: their positions, laid flat, and their content."""

    position: Array
    pixels: Array
    hit: Array
    confidence: Array


def empty_cells(*shape: int) -> Histogram:
    """Return fine histograms of zeros; numpy allocates no memory for pages that are never written to."""
    shape = (*shape, CELLS)
    count, hit, total = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape)
    return Histogram(torch.from_numpy(count), torch.from_numpy(hit), torch.from_numpy(total))


def take_cells(cells: Histogram, classes: Sequence[int]) -> OccupiedCells:
    """Return the occupied cells of some classes, and set them to 0; a table that is used again costs no memory."""
    fields = [field.numpy() for field in cells]
    held = [np.flatnonzero(fields[0][c]) + c * CELLS for c in classes]
    position = np.concatenate(held) if held else np.zeros(0, np.int64)
    flat = [field.reshape(-1) for field in fields]
    found = OccupiedCells(position, *(field[position] for field in flat))
    for field in flat:
        field[position] = 0
    return found


def join_cells(regions: Sequence[OccupiedCells], num_classes: int) -> OccupiedCells:
    """Return the occupied cells of several regions, one after the other."""
    moved = [cells.position + k * num_classes * CELLS for k, cells in enumerate(regions)]
    content = zip(*(cells[1:] for cells in regions), strict=True)
    return OccupiedCells(np.concatenate(moved), *(np.concatenate(parts) for parts in content))


def add_cells(occupied: OccupiedCells, cells: Histogram) -> None:
    """Add occupied cells to fine histograms, in place."""
    for field, values in zip(cells, occupied[1:], strict=True):
        field.view(-1).numpy()[occupied.position] += values


def equal_mass_bins(cells: Histogram, *, bins: int, form: Form) -> Histogram:
    """Read equal-mass bins `[L, R]` from a fine histogram `[L, 65536]`; `equal_mass_error` bounds the error."""
    by_class = form == "marginal"
    counts = cells.pixels if by_class else cells.pixels.sum(dim=0, keepdim=True)
    at = torch.arange(CELLS, device=counts.device)
    bin_of = (at > _edge_cells(counts, bins).unsqueeze(-1)).sum(dim=-2)  # [L or 1, cells]
    where = bin_of.expand(cells.pixels.shape[0], -1)
    shape = (cells.pixels.shape[0], bins)
    return Histogram(*(field.new_zeros(shape).scatter_add_(1, where, field) for field in cells))


def equal_mass_error(cells: Histogram, *, bins: int) -> Float64[Tensor, ""]:
    """Return a bound of the error of ACE (tables) read from a fine histogram.

    A pixel can only be in the wrong bin if an edge cuts its cell, and then it changes two gaps by less than its weight.
    """
    counts = cells.pixels.sum(dim=0)
    cut = torch.zeros_like(counts, dtype=torch.bool)
    for nudge in (0.0, 1e-6):  # a position rounded to just below a whole rank may be that rank
        cut[_edge_cells(counts.unsqueeze(0), bins, nudge).squeeze(0)] = True
    return 2 * counts[cut].sum().double() / counts.sum()


def ece_by_bins(cells: Histogram, bins: Sequence[int]) -> Array:
    """Return ECE for each number of equal bins, from a fine histogram `[L, 65536]`; NaN where there is no pixel.

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


@np.errstate(under="ignore")  # a program may have numpy raise, and damped waves vanish
def smooth_ece(cells: Histogram) -> float:
    """Return the smooth calibration error of Błasiok and Nakkiran (2023), from a fine histogram `[L, 65536]`.

    The residuals (right or not, less confidence) are smoothed over the confidence by a Gaussian that is reflected at 0
    and 1, and the absolute value of the result is integrated. It falls as the width grows; the error is the width at
    which both are equal, so that there is no width to choose.
    """
    count, residual, place = _occupied(cells)
    if not count.size:
        return float("nan")
    from scipy.fft import dct, idct  # noqa: PLC0415  slow to import

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


def _edge_cells(counts: Int[Tensor, "K cells"], bins: int, nudge: float = 0.0) -> Int64[Tensor, "K inner"]:
    """Return the cell that each inner percentile falls into; any cell where there is no pixel."""
    cumulative = counts.cumsum(dim=-1)
    position = (cumulative[:, -1:] - 1).clamp(min=0) * counting.percentiles(bins, counts.device)[1:-1]
    return torch.searchsorted(cumulative, (position + nudge).floor().long(), right=True).clamp(max=CELLS - 1)


def _occupied(cells: Histogram) -> tuple[Array, Array, Array]:
    """Return pixels, correct pixels less summed confidence, and mean confidence of the cells that hold pixels."""
    count, hit, total = (field.numpy().sum(axis=0) for field in cells)
    held = np.flatnonzero(count)
    return count[held], hit[held] - total[held], total[held] / count[held]


def _on_grid(weights: Array, places: Array) -> Array:
    """Divide weights between the two nearest of the positions (j + 1/2) / G, so that their mean position stays."""
    position = np.clip(places * _GRID - 0.5, 0, _GRID - 1)
    lower = np.minimum(position.astype(np.int64), _GRID - 2)
    share = position - lower
    grid = np.bincount(lower, weights * (1 - share), minlength=_GRID)
    return grid + np.bincount(lower + 1, weights * share, minlength=_GRID)
