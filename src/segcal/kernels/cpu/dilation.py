"""Boxes around each pixel that reach a boundary, compiled for the CPU.

Three shifted copies of a box make the next box. Lines are laid out with gaps between them that no shift crosses, so
that a shift is one pass over one long array of bytes.
"""

from __future__ import annotations

import numpy as np

from segcal.kernels.constants import DOUBLINGS
from segcal.kernels.cpu.compiling import compiled
from segcal.types import Array

_GAP = 1 << (DOUBLINGS - 1)  # the largest shift


@compiled
def _widen(level: Array, size: int, shift: int, result: Array) -> None:
    """Unite each of the blocks of `size` bytes with itself shifted back and forth."""
    n = level.shape[0]
    for i in range(n):
        result[i] = level[i]
    for start in range(0, n if shift < size else 0, size):
        source, out = level[start : start + size - shift], result[start + shift : start + size]
        for i in range(size - shift):
            out[i] |= source[i]
        source, out = level[start + shift : start + size], result[start : start + size - shift]
        for i in range(size - shift):
            out[i] |= source[i]


@compiled
def free_boxes(near: Array, free: Array) -> None:
    """Count, for each pixel of `[D, H, W]`, the boxes that reach 0, 1, 3, 7 and 15 around it and hold no boundary."""
    depth, height, width = near.shape
    pitch = width + _GAP
    plane = height * pitch
    size = depth * plane
    scratch = np.zeros((3, size), np.uint8)
    first, total = scratch[0], scratch[2]
    for z in range(depth):
        for y in range(height):
            source, line = near[z, y], first[z * plane + y * pitch :]
            for x in range(width):
                line[x] = source[x]
    for doubling in range(DOUBLINGS + 1):
        level, wider = scratch[doubling % 2], scratch[1 - doubling % 2]
        for i in range(size):
            total[i] += level[i]
        if doubling < DOUBLINGS:
            shift = 1 << doubling
            _widen(level, size, shift, wider)
            for end in range(pitch, size + 1, pitch):
                wider[end - _GAP : end] = 0
            _widen(wider, plane, shift * pitch, level)
            _widen(level, size, shift * plane, wider)
    for z in range(depth):
        for y in range(height):
            line, out = total[z * plane + y * pitch :], free[z, y]
            for x in range(width):
                out[x] = np.uint8(1 + DOUBLINGS) - line[x]
