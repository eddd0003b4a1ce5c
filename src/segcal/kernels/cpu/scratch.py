"""Memory for intermediate results that a thread keeps between calls.

Memory that is mapped for every call costs more than the arithmetic on it: the system clears each page when it is first
touched, which takes about half a millisecond for a megabyte.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from segcal.types import Array

_KEPT = 1 << 26
"""Bytes that a thread keeps at most; larger blocks are freed after use."""

_LINE = 64
"""Arrays start on a line of the cache."""

_own = threading.local()


def scratch_arrays(*wanted: tuple[Sequence[int], Any]) -> list[Array]:
    """Return arrays of these shapes and dtypes, uninitialized; the next call in the same thread reuses their memory.

    Only the outermost function of a kernel may call it, and it must not return these arrays.
    """
    sizes = [_rounded(math.prod(shape) * np.dtype(dtype).itemsize) for shape, dtype in wanted]
    block, found = _block(sum(sizes) + _LINE), []
    start = -block.ctypes.data % _LINE
    for (shape, dtype), size in zip(wanted, sizes, strict=True):
        count = math.prod(shape) * np.dtype(dtype).itemsize
        found.append(block[start : start + count].view(dtype).reshape(shape))
        start += size
    return found


def _rounded(size: int) -> int:
    """Return a size in whole lines, an odd number of them: arrays a power of two apart would compete for one place."""
    lines = -(-size // _LINE)
    return _LINE * (lines + 1 - lines % 2)


def _block(size: int) -> Array:
    held: Array | None = getattr(_own, "block", None)
    if held is not None and held.size >= size:
        return held
    block = np.empty(size, np.uint8)
    if size <= _KEPT:
        _own.block = block
    return block
