"""The functions of `context_kernels` in plain PyTorch, for every device, gradients and export; also what they mean."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from segcal.functional.probability import at_least_float32
from segcal.kernels.constants import DOUBLINGS, LOWEST, MARGIN_CAP, WINDOWS


def features(logits: Tensor) -> Tensor:
    """Entropy, margin, distance, and box means of entropy, margin and boundary: `[B, 9, *S]`; see `context`."""
    entropy, margin, predicted = described(logits)
    near = changes(predicted).to(entropy.dtype)
    maps = torch.stack([entropy, margin, near], dim=1)
    means = [box_mean(maps, width) for width in WINDOWS]
    return torch.cat([torch.stack([entropy, margin, distance(near)], dim=1), *means], dim=1)


def described(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Entropy, capped margin and predicted class, each `[B, *S]`."""
    wide = at_least_float32(logits)
    predicted = logits.argmax(dim=1, keepdim=True)
    below = (wide - wide.gather(1, predicted)).clamp(min=LOWEST)
    average = (torch.softmax(below, dim=1) * below).sum(dim=1)
    margin = -below.scatter(1, predicted, -MARGIN_CAP).amax(dim=1).clamp(min=-MARGIN_CAP)
    return torch.logsumexp(below, dim=1) - average, margin, predicted.squeeze(1)


def changes(predicted: Tensor) -> Tensor:
    """Pixels of `[B, *S]` whose neighbour along an axis has another label."""
    near = torch.zeros_like(predicted, dtype=torch.bool)
    for axis in range(1, predicted.ndim):
        length = predicted.shape[axis]
        differs = predicted.narrow(axis, 1, length - 1) != predicted.narrow(axis, 0, length - 1)
        edge = torch.zeros_like(predicted.narrow(axis, 0, 1), dtype=torch.bool)
        near = near | torch.cat([edge, differs], dim=axis) | torch.cat([differs, edge], dim=axis)
    return near


def distance(near: Tensor) -> Tensor:
    """How many of the cubes that reach 0, 1, 3, 7 and 15 pixels around a pixel of `[B, *S]` hold no boundary.

    That is the binary logarithm of the distance from the nearest boundary, plus 1, rounded up.
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


def box_mean(maps: Tensor, width: int) -> Tensor:
    """The mean over a box of `width` pixels a side around each pixel of `[B, C, *S]`; edges are mirrors."""
    dims = maps.ndim - 2
    pool = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[dims]
    for axis in range(dims):
        index = reflected(maps.shape[2 + axis], width // 2, maps.device)
        kernel = [width if k == axis else 1 for k in range(dims)]
        maps = pool(maps.index_select(2 + axis, index), kernel, stride=1)
    return maps


def reflected(length: int, reach: int, device: torch.device) -> Tensor:
    """Which of `length` places to read for those from `-reach` to `length - 1 + reach`.

    Both ends are mirrors, which see each other where an axis is shorter than the window.

    >>> reflected(3, 4, torch.device("cpu")).tolist()
    [0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2]
    """
    last = torch.arange(length, device=device)[-1:]  # a tensor, since an exported graph cannot divide by a size
    place = torch.arange(-reach, length + reach, device=device).remainder((2 * last).clamp(min=1))
    return torch.minimum(place, 2 * last - place)


def log_temperature(logits: Tensor, weights: Tensor, intercept: Tensor, offsets: Tensor) -> Tensor:
    """`intercept + weights . features + offsets[predicted class]` at each pixel: `[B, 1, *S]`."""
    found = features(logits)
    flat = weights.to(found.dtype).view(1, -1, *[1] * (found.ndim - 2))
    value = (flat * found).sum(dim=1, keepdim=True) + intercept.to(found.dtype)
    return value + offsets.to(found.dtype)[logits.argmax(dim=1, keepdim=True)]
