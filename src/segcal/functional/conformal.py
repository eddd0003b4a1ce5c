"""Conformal risk control (Angelopoulos et al., ICLR 2024): rules whose expected loss on a new image is bounded.

A rule has one parameter, an index k. The loss of an image must lie in 0..1 and must not decrease with k. If the images
seen so far and the next one are exchangeable, the largest k with `(losses of n images + 1) / (n + 1) <= alpha` has an
expected loss of at most alpha on the next image, for any network and any distribution of images.

Images of one group (a patient, a video) are not exchangeable with each other; groups are. The loss of a group is the
mean over its images, so the bound then holds for a random image of a new group (Lee et al. 2023).
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float, Float64, Int64

_ROUNDING = 1e-12  # a sum of losses that should reach the bound exactly may exceed it by this much


def fewest_units(alpha: float) -> int:
    """Return the least number of images or groups for which a bound of `alpha` says anything.

    Examples:
        >>> fewest_units(0.1), fewest_units(0.3)
        (9, 3)
    """
    return max(1, math.ceil(1 / alpha - 1 - 1e-9))


def group_means(
    values: Float[np.ndarray, "images K"], clusters: Int64[np.ndarray, " images"]
) -> Float64[np.ndarray, "units K"]:
    """Return the mean of each column over the images of each group.

    Examples:
        >>> group_means(np.array([[1.0], [0.0], [0.5]]), np.array([0, 0, 4])).tolist()
        [[0.5], [0.5]]
    """
    _, unit = np.unique(clusters, return_inverse=True)
    sums = np.zeros((int(unit.max(initial=-1)) + 1, values.shape[1]))
    for row, place in zip(values, unit, strict=True):
        sums[place] += row
    return sums / np.bincount(unit, minlength=len(sums))[:, np.newaxis]


def controlled_index(losses: Float[np.ndarray, "units K"], alpha: float) -> int:
    """Return the largest k whose bound on the risk is at most `alpha`; -1 where even k = 0 exceeds it.

    Examples:
        >>> losses = np.array([[0.0, 0.0, 1.0]] * 5 + [[0.0, 0.4, 1.0]] * 4)
        >>> controlled_index(losses, 0.3), controlled_index(losses, 0.1), controlled_index(losses, 0.05)
        (1, 0, -1)
    """
    return int(_last_within(losses.sum(axis=0), len(losses), alpha))


def left_out_indices(losses: Float[np.ndarray, "units K"], alpha: float) -> Int64[np.ndarray, " units"]:
    """Return the index that all other images or groups would choose for each one."""
    others = losses.sum(axis=0) - losses
    return np.array([_last_within(row, len(losses) - 1, alpha) for row in others], dtype=np.int64)


def conformal_radius(
    scores: Float[np.ndarray, " images"], clusters: Int64[np.ndarray, " images"], alpha: float
) -> float:
    """Return the radius that the score of a new image exceeds with a probability of at most `alpha`.

    Without groups this is the split conformal quantile: the score of rank `ceil((n + 1) (1 - alpha))`, or infinity if
    there are fewer images.

    Examples:
        >>> conformal_radius(np.arange(1.0, 11.0), np.arange(10), 0.2)
        9.0
    """
    radii, losses = _exceeded(scores, clusters)
    return float(radii[max(0, controlled_index(losses, alpha))])


def left_out_radii(
    scores: Float[np.ndarray, " images"], clusters: Int64[np.ndarray, " images"], alpha: float
) -> Float64[np.ndarray, " images"]:
    """Return for each image the radius that the images of all other groups give."""
    radii, losses = _exceeded(scores, clusters)
    _, unit = np.unique(clusters, return_inverse=True)
    chosen: Float64[np.ndarray, " units"] = radii[np.maximum(0, left_out_indices(losses, alpha))]
    return chosen[unit]


def _exceeded(
    scores: Float[np.ndarray, " images"], clusters: Int64[np.ndarray, " images"]
) -> tuple[Float64[np.ndarray, " K"], Float64[np.ndarray, "units K"]]:
    """Return radii, infinity first, and the share of each group's images whose score exceeds each of them."""
    radii = np.concatenate([[np.inf], np.unique(scores)[::-1]]).astype(np.float64)
    return radii, group_means((scores[:, np.newaxis] > radii).astype(np.float64), clusters)


def _last_within(total: Float[np.ndarray, " K"], units: int, alpha: float) -> int:
    """Return the largest index at which `(total + 1) / (units + 1)` is at most `alpha`, or -1."""
    within = np.flatnonzero(total + 1 <= alpha * (units + 1) + _ROUNDING)
    return int(within[-1]) if within.size else -1
