"""Selective prediction (Geifman et al., ICLR 2019): the risk of the predictions that are kept, against how many are.

Predictions are kept from the most confident on. The coverage is the share that is kept, the risk their mean loss, and
AURC the mean risk over all coverages 1/N, 2/N, ..., 1. Predictions of equal confidence are in random order, and the
expectation over these orders is computed exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64
from scipy.special import digamma
from torch import Tensor


class Blocks(NamedTuple):
    """Predictions of equal confidence: mean confidence, number and summed loss of each block, most confident first."""

    confidence: Float64[np.ndarray, " K"]
    number: Int64[np.ndarray, " K"]
    loss: Float64[np.ndarray, " K"]


def blocks_of_cells(cells: Sequence[Tensor]) -> Blocks:
    """Return the blocks of the pixels, correct pixels and summed confidence `[L, 65536]` of a fine histogram.

    The loss of a pixel is 1 where its label is wrong.
    """
    count, hit, total = (field.numpy().sum(axis=0)[::-1] for field in cells)
    held = np.flatnonzero(count)
    return Blocks(total[held] / count[held], count[held], (count - hit)[held].astype(np.float64))


def blocks_of(confidence: Float[np.ndarray, " N"], loss: Float[np.ndarray, " N"]) -> Blocks:
    """Return the blocks of single predictions, such as whole images with the share of their wrong pixels."""
    values, place = np.unique(-np.asarray(confidence, dtype=np.float64), return_inverse=True)
    return Blocks(-values, np.bincount(place, minlength=len(values)), np.bincount(place, loss, minlength=len(values)))


def aurc(blocks: Blocks) -> float:
    """Return the area under the risk-coverage curve; NaN without predictions.

    In a block of m predictions after n others of loss E, the j-th is reached with a risk of `(E + j r) / (n + j)` on
    average, where r is the mean loss of the block. These sum to `m r + (E - n r) (H(n + m) - H(n))` with harmonic
    numbers H.

    Examples:
        >>> aurc(Blocks(np.array([0.9, 0.5]), np.array([1, 1]), np.array([0.0, 1.0])))  # risks 0 and 1/2
        0.25
    """
    ends = np.cumsum(blocks.number).astype(np.float64)
    if not ends.size:
        return float("nan")
    starts, before = ends - blocks.number, np.cumsum(blocks.loss) - blocks.loss
    mean = blocks.loss / blocks.number
    harmonic = digamma(ends + 1) - digamma(starts + 1)
    return float((blocks.loss + (before - starts * mean) * harmonic).sum() / ends[-1])


def aurc_bounds(blocks: Blocks) -> tuple[float, float]:
    """Return the AURC with the correct pixels of every block first, and with the wrong ones first.

    A fine histogram does not hold the order within its cells; the exact AURC of the pixels lies between the two.
    """
    return aurc(_split(blocks, wrong_first=False)), aurc(_split(blocks, wrong_first=True))


def excess_aurc(blocks: Blocks) -> float:
    """Return AURC less that of a perfect order of pixels, all correct ones first, with as many wrong pixels."""
    whole = Blocks(np.zeros(1), blocks.number.sum(keepdims=True), blocks.loss.sum(keepdims=True))
    return aurc(blocks) - aurc(_split(whole, wrong_first=False))


def risk_coverage(
    blocks: Blocks, coverages: Float[np.ndarray, " P"]
) -> tuple[Float64[np.ndarray, " P"], Float64[np.ndarray, " P"]]:
    """Return the risk at each coverage, and the mean confidence of the block in which the last kept prediction is."""
    ends = np.cumsum(blocks.number).astype(np.float64)
    if not ends.size:
        return np.full(len(coverages), np.nan), np.full(len(coverages), np.nan)
    kept = np.clip(np.asarray(coverages) * ends[-1], 1, ends[-1])
    place = np.minimum(np.searchsorted(ends, kept - 1e-9), len(ends) - 1)
    before = np.cumsum(blocks.loss) - blocks.loss
    within = (kept - (ends - blocks.number)[place]) * (blocks.loss / blocks.number)[place]
    return (before[place] + within) / kept, blocks.confidence[place]


def _split(blocks: Blocks, *, wrong_first: bool) -> Blocks:
    """Return two blocks for each: its correct and its wrong pixels."""
    wrong = blocks.loss.astype(np.int64)
    right, sign = blocks.number - wrong, -1 if wrong_first else 1
    count = np.stack([right, wrong][::sign], axis=1).ravel()
    loss = np.stack([np.zeros_like(wrong), wrong][::sign], axis=1).ravel().astype(np.float64)
    held = count > 0
    return Blocks(np.repeat(blocks.confidence, 2)[held], count[held], loss[held])
