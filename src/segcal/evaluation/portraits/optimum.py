"""The best temperature around each pixel (Fig. 1, right), which needs the labels.

By Theorem 1 the slope of the log-likelihood in 1/T, the sum of z_label - E[z], has one root, which is the optimum. The
slope is summed over a window around each pixel at 13 temperatures, and the root is interpolated between two of them.

A volume passes through in pieces of a few slices: the slopes of a piece and of the slices that its windows reach are
all that is held at once. Window sums are plain sums in a fixed order (running sums would depend on where they start),
so the pieces do not change a bit of the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Float, Float32, Int
from torch import Tensor

from segcal.evaluation.portraits.model import Thinning
from segcal.functional.temperature import likelihood_slopes
from segcal.types import Array

WINDOW = 5
BOUNDS = (0.125, 8.0)
_OCTAVES = 6  # from the lower bound to the upper
_STEPS = 2 * _OCTAVES + 1
_FLAT = 1e-9
"""Mean slopes this close to 0 are those of windows without errors, whose optimum is the lower bound."""

_PIECE = 1 << 21
"""Slopes held at a time (8 MiB)."""

Slopes = Float32[np.ndarray, "steps *S"]


def local_optimum(
    slabs: Iterable[tuple[slice, Float[Tensor, "1 L *R"]]],
    labels: Int[Tensor, "*S"],
    window: int = WINDOW,
    thinned: Thinning | None = None,
) -> Array:
    """Return the temperature of least NLL over a window around each labelled pixel; NaN elsewhere.

    Values outside 1/8..8 are set to these bounds: a window without errors asks for T = 0.

    Args:
        slabs: Rows of the case and their logits, in order.
        labels: True classes, negative where ignored.
        window: Side in pixels.
        thinned: Pixels to return the temperature of; all of them by default.
    """
    steps = (thinned or Thinning((1,) * labels.ndim)).strides
    columns = tuple(slice(None, None, step) for step in steps[1:])
    inside, found, at = labels.numpy() >= 0, [], 0
    for slopes in _window_means(_pieces(slabs, labels), window):
        rows = slice(-at % steps[0], None, steps[0])
        best = _roots(slopes[(slice(None), rows, *columns)])
        found.append(np.where(inside[at : at + slopes.shape[1]][(rows, *columns)], best, np.nan))
        at += slopes.shape[1]
    return np.concatenate(found)


def _pieces(slabs: Iterable[tuple[slice, Float[Tensor, "1 L *R"]]], labels: Int[Tensor, "*S"]) -> Iterator[Slopes]:
    """Yield the slopes of the rows of a case, a few rows at a time."""
    step = max(1, _PIECE // (_STEPS * math.prod(labels.shape[1:])))
    for rows, logits in slabs:
        for start in range(rows.start, rows.stop, step):
            stop = min(start + step, rows.stop)
            scores, truth = logits[0, :, start - rows.start : stop - rows.start].cpu(), labels[start:stop]
            slopes = likelihood_slopes(scores.flatten(1), truth.flatten(), BOUNDS[0], _OCTAVES)
            yield slopes.view(_STEPS, *truth.shape).numpy()


def _temperature(step: int) -> float:
    return float(BOUNDS[0] * 2 ** (step / 2))


def _window_means(pieces: Iterable[Slopes], window: int) -> Iterator[Slopes]:
    """Yield the means over windows, 0 beyond the edges, as soon as all rows of a window are known."""
    before, after = window // 2, (window - 1) // 2
    pending: Slopes | None = None  # rows whose windows are not complete, and those that these reach back to
    for piece in pieces:
        across = _sums_across(piece, window)
        if pending is None:
            pending = _zero_rows(piece, before)
        pending = np.concatenate([pending, across], axis=1)
        complete = pending.shape[1] - window + 1
        if complete > 0:
            yield _sums(pending, window, 1) / np.float32(window ** (piece.ndim - 1))
            pending = pending[:, complete:]
    if pending is not None and after:
        last = np.concatenate([pending, _zero_rows(pending, after)], axis=1)
        yield _sums(last, window, 1) / np.float32(window ** (pending.ndim - 1))


def _zero_rows(like: Slopes, count: int) -> Slopes:
    return np.zeros((len(like), count, *like.shape[2:]), np.float32)


def _sums_across(piece: Slopes, window: int) -> Slopes:
    """Return the sums over windows along all axes of a row."""
    for axis in range(2, piece.ndim):
        widths = [(window // 2, (window - 1) // 2) if k == axis else (0, 0) for k in range(piece.ndim)]
        piece = _sums(np.pad(piece, widths), window, axis)
    return piece


def _sums(padded: Slopes, window: int, axis: int) -> Slopes:
    """Return the sum of each `window` neighbours along an axis, always in the same order."""
    length = padded.shape[axis] - window + 1
    parts = [padded[(*[slice(None)] * axis, slice(k, k + length))] for k in range(window)]
    total: Slopes = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def _roots(slopes: Slopes) -> Array:
    """Return where slopes `[steps, *S]`, which rise with the temperature, cross zero."""
    logs = np.log([_temperature(k) for k in range(_STEPS)])
    below = np.clip((slopes < -_FLAT).sum(axis=0), 1, _STEPS - 1)  # first step at or above the root
    left, right = (np.take_along_axis(slopes, (below - k)[np.newaxis], axis=0)[0] for k in (1, 0))
    rise = right - left
    share = np.clip(np.divide(-left, rise, out=np.zeros_like(rise), where=rise > 0), 0, 1)
    return np.asarray(np.exp(logs[below - 1] + share * (logs[below] - logs[below - 1])))
