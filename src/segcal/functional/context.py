"""Features of a pixel and its surroundings that predict how reliable its confidence is.

None of them changes when a constant is added to all logits of a pixel, and none depends on the order of the classes:

- of the pixel: entropy, margin of the two largest logits (up to 10), and its distance from the nearest predicted
  boundary, in doublings: how many of the boxes that reach 0, 1, 3, 7 and 15 pixels around it contain none;
- of boxes of 9 and of 25 pixels a side around it: means of entropy and margin, and the share of pixels that have a
  neighbour with another predicted label, which says how close and how ragged the predicted boundaries are.

Edges are mirrors: beyond the last pixel comes the last but one. Where an axis is shorter than the window, the mirrors
reflect each other. In 3D the boxes are cubes.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from segcal.functional.division import soft_floor
from segcal.functional.probability import at_least_float32
from segcal.kernels.constants import DOUBLINGS, LEAST_TEMPERATURE, LOWEST, MARGIN_CAP, WINDOWS
from segcal.kernels.dispatch import accelerated

FEATURES = (
    "entropy",
    "margin",
    "distance",
    *(f"{name} in {width}" for width in WINDOWS for name in ("entropy", "margin", "boundary")),
)
"""The names of the features, in order."""

WORDS = (
    "entropy of the pixel",
    "margin of its two largest logits",
    "distance from predicted boundaries",
    *(
        f"{name} the {width}-pixel surroundings"
        for width in WINDOWS
        for name in ("entropy of", "margin in", "share of predicted boundaries in")
    ),
)
"""The features in words, in the same order."""

REACH = max(max(WINDOWS) // 2, (1 << DOUBLINGS) - 1) + 1
"""Reach of the features in pixels: half a window or the largest distance, and one more for its neighbour."""


@accelerated
def context_features(logits: Float[Tensor, "B L *S"]) -> Float[Tensor, "B F *S"]:
    """Return all features of each pixel, in the order of `FEATURES`.

    Examples:
        >>> context_features(torch.zeros(1, 4, 1, 1)).flatten()
        tensor([1.3863, 0.0000, 5.0000, 1.3863, 0.0000, 0.0000, 1.3863, 0.0000, 0.0000])
    """
    entropy, margin, predicted = _described(logits)
    near = changes(predicted).to(entropy.dtype)
    maps = torch.stack([entropy, margin, near], dim=1)
    means = [_box_mean(maps, width) for width in WINDOWS]
    return torch.cat([torch.stack([entropy, margin, distance(near)], dim=1), *means], dim=1)


@accelerated
def context_temperature(
    logits: Float[Tensor, "B L *S"],
    weights: Float64[Tensor, " F"],
    intercept: Float64[Tensor, ""],
    offsets: Float64[Tensor, " L"],
    bounds: tuple[float, float],
    floor: Float64[Tensor, ""],
    softness: Float64[Tensor, ""],
) -> Float[Tensor, "B 1 *S"]:
    """Return `exp(intercept + weights . features + offsets[predicted class])` above the floor and within the bounds.

    The floor is soft (`functional.division`), or hard for a softness of 0. A floor of 0 is none.
    """
    found = context_features(logits)
    flat = weights.to(found.dtype).view(1, -1, *[1] * (found.ndim - 2))
    value = (flat * found).sum(dim=1, keepdim=True) + intercept.to(found.dtype)
    value = value + offsets.to(found.dtype)[logits.argmax(dim=1, keepdim=True)]
    least = floor.clamp(min=LEAST_TEMPERATURE).to(found.dtype)
    return torch.exp(soft_floor(value, least, softness.to(found.dtype))).clamp(*bounds)


def _described(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return entropy, capped margin and predicted class, each `[B, *S]`."""
    wide = at_least_float32(logits)
    predicted = logits.argmax(dim=1, keepdim=True)
    below = (wide - wide.gather(1, predicted)).clamp(min=LOWEST)
    average = (torch.softmax(below, dim=1) * below).sum(dim=1)
    margin = -below.scatter(1, predicted, -MARGIN_CAP).amax(dim=1).clamp(min=-MARGIN_CAP)
    return torch.logsumexp(below, dim=1) - average, margin, predicted.squeeze(1)


def changes(predicted: Tensor) -> Tensor:
    """Return the pixels of `[B, *S]` that have a neighbour along an axis with another label."""
    near = torch.zeros_like(predicted, dtype=torch.bool)
    for axis in range(1, predicted.ndim):
        length = predicted.shape[axis]
        differs = predicted.narrow(axis, 1, length - 1) != predicted.narrow(axis, 0, length - 1)
        edge = torch.zeros_like(predicted.narrow(axis, 0, 1), dtype=torch.bool)
        near = near | torch.cat([edge, differs], dim=axis) | torch.cat([differs, edge], dim=axis)
    return near


def distance(near: Tensor) -> Tensor:
    """Return how many of the cubes that reach 0, 1, 3, 7 and 15 pixels around a pixel of `[B, *S]` hold no boundary.

    This is the binary logarithm of the distance from the nearest boundary, plus 1, rounded up.
    """
    dims = near.ndim - 1
    pool = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[dims]
    level, free = near.unsqueeze(1), 1 - near
    for doubling in range(DOUBLINGS):
        reach = 1 << doubling  # from 2**k - 1 to 2**(k + 1) - 1
        for axis in range(dims):
            beyond = [reach if k == axis else 0 for k in range(dims)]
            level = pool(level, [2 * k + 1 for k in beyond], stride=1, padding=beyond)
        free = free + (1 - level.squeeze(1))
    return free


def _box_mean(maps: Tensor, width: int) -> Tensor:
    """Return the mean over a box of `width` pixels a side around each pixel of `[B, C, *S]`; edges are mirrors."""
    dims = maps.ndim - 2
    pool = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[dims]
    for axis in range(dims):
        index = reflected(maps.shape[2 + axis], width // 2, maps.device)
        kernel = [width if k == axis else 1 for k in range(dims)]
        maps = pool(maps.index_select(2 + axis, index), kernel, stride=1)
    return maps


def reflected(length: int | torch.SymInt, reach: int, device: torch.device) -> Tensor:
    """Return which of `length` places to read for those from `-reach` to `length - 1 + reach`.

    Both ends are mirrors, which reflect each other where an axis is shorter than the window.

    Examples:
        >>> reflected(3, 4, torch.device("cpu")).tolist()
        [0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2]
    """
    # a tensor, since an exported graph cannot divide by a size
    last = torch.arange(length, device=device)[-1:]  # type: ignore[arg-type]
    place = torch.arange(-reach, length + reach, device=device).remainder((2 * last).clamp(min=1))  # type: ignore[arg-type]
    return torch.minimum(place, 2 * last - place)
