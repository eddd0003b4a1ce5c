"""Half precision on the CPU: blocks of float16 and bfloat16 to float32 and back, as numbers of 16 bits.

numba has no arithmetic in half precision. Going through float32 block by block in the cache needs no memory for a
converted copy.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.cpu.compiling import compiled
from segcal.types import Array

HALVES = (torch.float16, torch.bfloat16)
LARGEST = {kind: np.float32(torch.finfo(kind).max * (1 - torch.finfo(kind).eps)) for kind in HALVES}
"""The bounds of scores, as in `segcal.functional.division.finite_in`."""


def flat_scores(image: Tensor) -> Array:
    """Return an image `[L, *S]` as `[L, N]`, without a copy where memory order allows; half precision as its bits."""
    bits = image.detach().contiguous().flatten(1)
    return (bits.view(torch.int16) if image.dtype in HALVES else bits).numpy()


@compiled
def widen(bits: Array, brain: bool, out: Array) -> None:
    """Convert float16, or bfloat16 if `brain`, to float32; NaN and infinity become numbers beyond the largest."""
    n = bits.shape[0]
    if brain:
        for i in range(n):
            out[i] = np.int32(np.int32(bits[i]) << np.int32(16)).view(np.float32)
        return
    for i in range(n):
        word = np.int32(bits[i])
        size = np.int32((word & np.int32(0x7FFF)) << np.int32(13)).view(np.float32) * np.float32(2.0**112)
        # the exponent of infinity and NaN is that of a number beyond 65,504, to which infinity is added
        size = size if size < np.float32(65536) else size + np.float32(np.inf)
        out[i] = -size if word & np.int32(0x8000) else size


@compiled
def widen_block(bits: Array, brain: bool, at: int, n: int, out: Array) -> None:
    """Convert `n` pixels of `[L, N]` from `at` on to the first columns of `[L, BLOCK]`."""
    for c in range(bits.shape[0]):
        widen(bits[c, at : at + n], brain, out[c])


@compiled
def narrow(value: float, brain: bool) -> np.int32:
    """Return the bits of a finite number in float16, or in bfloat16 if `brain`, rounded to nearest, ties to even."""
    word = np.float32(value).view(np.int32)
    sign, size = (word >> np.int32(16)) & np.int32(0x8000), word & np.int32(0x7FFFFFFF)
    if brain:
        return sign | ((size + np.int32(0x7FFF) + ((size >> np.int32(16)) & np.int32(1))) >> np.int32(16))
    small = np.int32(size).view(np.float32) + np.float32(0.5)  # its last bit is the least number of float16
    of_small = np.float32(small).view(np.int32) - np.int32(0x3F000000)
    of_large = (size - np.int32(112 << 23) + np.int32(0xFFF) + ((size >> np.int32(13)) & np.int32(1))) >> np.int32(13)
    return sign | (of_small if size < np.int32(113 << 23) else of_large)


@compiled
def _below(bits: np.int32, brain: bool) -> np.int32:
    """Return the bits of the number below; see `segcal.functional.probability.next_below`."""
    below = bits + np.int32(1) if bits & np.int32(0x8000) else bits - np.int32(1)
    gap = np.int32(0x80) if brain else np.int32(1)
    return below if bits & np.int32(0x7FFF) >= gap else np.int32(0x8000) | gap


@compiled
def narrow_scores(scores: Array, logits: Array, n: int, largest: float, brain: bool, at: int, result: Array) -> None:
    """Write the scores of `n` pixels, both `[L, BLOCK]`, within `largest`, to `result` from `at` on, with labels kept.

    See `segcal.functional.probability.keep_labels`: a rival that rounding makes equal to the winner is moved down.
    """
    top, best = logits[0, :n].copy(), scores[0, :n].copy()
    for c in range(1, scores.shape[0]):
        row, found = logits[c], scores[c]
        for i in range(n):
            top[i], best[i] = max(top[i], row[i]), max(best[i], found[i])
    winner, gap = np.empty(n, np.int32), np.int32(0x80) if brain else np.int32(1)
    for i in range(n):
        winner[i] = narrow(min(max(best[i], -largest), largest), brain)
    for c in range(scores.shape[0]):
        row, found, out = logits[c], scores[c], result[c, at : at + n]
        for i in range(n):
            bits = np.int32(narrow(min(max(found[i], -largest), largest), brain))
            equal = (bits == winner[i]) | (((bits | winner[i]) & np.int32(0x7FFF)) < gap)
            out[i] = _below(bits, brain) if equal & (row[i] < top[i]) else bits
