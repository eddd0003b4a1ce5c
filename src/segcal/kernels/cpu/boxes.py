"""Means over boxes around each pixel, compiled for the CPU; edges are mirrors.

A box of 9 or 25 is a sum of runs of 1, 8 and 16 values, which result from runs of 4: a few vector additions per pixel,
in an order that depends only on the place in the window. So slabs, threads and whole images give the same bits, which a
running sum would not. Several lines are laid out one after the other with their mirrored ends, so that the additions
run over one long array, whatever the length of a line.
"""

from __future__ import annotations

import numpy as np

from segcal.kernels.constants import WINDOWS
from segcal.kernels.cpu.compiling import compiled
from segcal.types import Array

STRIP = 64
"""Columns whose sums stay in the cache."""

_BEYOND = max(WINDOWS) - 1
_LINES = 2048
"""Values of as many lines as are summed together."""


@compiled
def _mirrored(at: int, length: int) -> int:
    """Return the place to read for one beyond an end of an axis; see `segcal.functional.context.reflected`."""
    period = max(2 * (length - 1), 1)
    place = at % period
    return min(place, 2 * (length - 1) - place)


@compiled
def box_scratch(rows: int, columns: int) -> Array:
    """Return the scratch memory that the functions below need for `rows` lines of `columns` pixels."""
    return np.empty((4, max(_LINES, columns + _BEYOND, (rows + _BEYOND) * STRIP)), np.float32)


@compiled
def _sum_runs(scratch: Array, pitch: int, count: int, width: int) -> None:
    """Sum runs of `width` values, `pitch` apart, of `scratch[0]` into `scratch[3]`; `width` is 1, 9 or 25."""
    values, fours, eights, sums = scratch[0], scratch[1], scratch[2], scratch[3]
    if width == 1:
        for i in range(count):
            sums[i] = values[i]
        return
    many = count + (width - 4) * pitch
    a, b, c, d = values[:many], values[pitch:], values[2 * pitch :], values[3 * pitch :]
    for i in range(many):
        fours[i] = (a[i] + b[i]) + (c[i] + d[i])
    if width == 9:
        e, f = fours[pitch:], fours[5 * pitch :]
        for i in range(count):
            sums[i] = values[i] + (e[i] + f[i])
        return
    many, later = count + (width - 8) * pitch, fours[4 * pitch :]
    for i in range(many):
        eights[i] = fours[i] + later[i]
    e, f, g = eights[pitch:], eights[9 * pitch :], eights[17 * pitch :]
    for i in range(count):
        sums[i] = (values[i] + e[i]) + (f[i] + g[i])


@compiled
def mean_along_lines(values: Array, width: int, scratch: Array, result: Array) -> None:
    """Compute the mean along the last axis of `[R, W]`."""
    rows, length = values.shape
    reach, scale = width // 2, np.float32(1 / width)
    pitch = length + 2 * reach
    together = max(1, _LINES // pitch)
    for first in range(0, rows, together):
        many = min(together, rows - first)
        for k in range(many):
            source, line = values[first + k], scratch[0, k * pitch : (k + 1) * pitch]
            inner = line[reach : reach + length]
            for i in range(length):
                inner[i] = source[i]
            for i in range(reach):
                line[i] = source[_mirrored(i - reach, length)]
                line[reach + length + i] = source[_mirrored(length + i, length)]
        _sum_runs(scratch, 1, many * pitch - 2 * reach, width)
        for k in range(many):
            line, out = scratch[3, k * pitch : k * pitch + length], result[first + k]
            for i in range(length):
                out[i] = line[i] * scale


@compiled
def strip_sums(values: Array, first: int, n: int, width: int, scratch: Array) -> Array:
    """Return the sums along the first axis of `n` columns of `[R, K]` from `first` on, as `[R, n]` in `scratch`."""
    rows, reach = values.shape[0], width // 2
    for k in range(rows + 2 * reach):
        source, line = values[_mirrored(k - reach, rows), first : first + n], scratch[0, k * n : (k + 1) * n]
        for i in range(n):
            line[i] = source[i]
    _sum_runs(scratch, n, rows * n, width)
    return scratch[3, : rows * n].reshape(rows, n)


@compiled
def mean_along_columns(values: Array, width: int, scratch: Array, result: Array, start: int, stop: int) -> None:
    """Compute the mean along the first axis of `[R, K]` for strips `start` to `stop` of columns."""
    rows, columns = values.shape
    scale = np.float32(1 / width)
    for strip in range(start, stop):
        first = strip * STRIP
        n = min(STRIP, columns - first)
        sums = strip_sums(values, first, n, width, scratch)
        for k in range(rows):
            line, out = sums[k], result[k, first : first + n]
            for i in range(n):
                out[i] = line[i] * scale


@compiled
def mean_in_plane(values: Array, width: int, tall: bool, scratch: Array, result: Array) -> None:
    """Compute the mean along the lines of `[H, W]` and, if it is `tall`, across them; changes `values`."""
    if not tall:
        mean_along_lines(values, width, scratch, result)
        return
    mean_along_lines(values, width, scratch, values)
    strips = (values.shape[1] + STRIP - 1) // STRIP
    mean_along_columns(values, width, scratch, result, 0, strips)
