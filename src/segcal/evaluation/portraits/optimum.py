"""The best temperature around each pixel (Fig. 1, right), which needs the labels."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.ndimage import uniform_filter
from torch import Tensor

from segcal.types import Array

WINDOW = 5
BOUNDS = (0.125, 8.0)
_STEPS = 13
_FLAT = 1e-9
"""Slopes this close to 0 are those of pixels without errors, whose optimum is the lower bound."""


def local_optimum(
    slabs: Iterable[tuple[slice, Float[Tensor, "1 L *R"]]], labels: Int[Tensor, "*S"], window: int = WINDOW
) -> Array:
    """Return the temperature of least NLL over a window around each labelled pixel; NaN elsewhere.

    By Theorem 1 the slope of the likelihood, the sum of z_label - E[z], falls as 1/T grows, so that its root is the
    optimum. The slope is summed over the window at 13 temperatures, and the root is interpolated between two of them.
    Values outside 1/8..8 are set to these bounds: a window without errors asks for T = 0.

    Args:
        slabs: Rows of the case and their logits.
        labels: True classes, negative where ignored.
        window: Side in pixels.
    """
    temperatures = np.geomspace(*BOUNDS, _STEPS)
    slopes = np.zeros((_STEPS, *labels.shape), np.float32)
    for rows, logits in slabs:
        slopes[:, rows] = _slopes(logits[0].double(), labels[rows], temperatures)
    inside = labels.numpy() >= 0
    # scipy's running sums leave rounding errors behind, which in float32 would pass for slopes
    for slope in slopes:
        slope[...] = uniform_filter(slope.astype(np.float64), window, mode="constant")
    return np.where(inside, _roots(slopes, temperatures), np.nan)


def _slopes(logits: Float[Tensor, "L *R"], labels: Int[Tensor, "*R"], temperatures: Array) -> Array:
    """Slope of the log-likelihood in 1/T at each pixel, 0 where the label is ignored."""
    right = logits.gather(0, labels.clamp(min=0).long().unsqueeze(0))[0]
    found = [right - (torch.softmax(logits / t, dim=0) * logits).sum(dim=0) for t in temperatures.tolist()]
    return np.asarray((torch.stack(found) * (labels >= 0)).cpu().numpy())


def _roots(slopes: Array, temperatures: Array) -> Array:
    """Where slopes `[steps, *S]`, which rise with the temperature, cross zero."""
    steps, logs = len(temperatures), np.log(temperatures)
    below = np.clip((slopes < -_FLAT).sum(axis=0), 1, steps - 1)  # first step at or above the root
    left, right = (np.take_along_axis(slopes, (below - k)[np.newaxis], axis=0)[0] for k in (1, 0))
    rise = right - left
    share = np.clip(np.divide(-left, rise, out=np.zeros_like(rise), where=rise > 0), 0, 1)
    return np.asarray(np.exp(logs[below - 1] + share * (logs[below] - logs[below - 1])))
