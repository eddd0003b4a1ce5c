"""Small operations on masks: which pixels have certain labels, unions, intersections, and positions of pixels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int64, Shaped
from torch import Tensor

from segcal.kernels.dispatch import accelerated


@accelerated
def without(labels: Shaped[Tensor, "*S"], values: Sequence[int]) -> Bool[Tensor, "*S"]:
    """Return where a label is none of the given values.

    >>> without(torch.tensor([0, 1, 255], dtype=torch.uint8), [255, -1])
    tensor([ True,  True, False])
    """
    return ~torch.isin(labels.long(), torch.tensor(values, dtype=torch.int64, device=labels.device))


@accelerated
def both(one: Bool[Tensor, "*S"], other: Bool[Tensor, "*S"]) -> Bool[Tensor, "*S"]:
    """Return the intersection of two masks."""
    return one & other


@accelerated
def either(one: Bool[Tensor, "*S"], other: Bool[Tensor, "*S"]) -> Bool[Tensor, "*S"]:
    """Return the union of two masks."""
    return one | other


@accelerated
def positions(mask: Bool[Tensor, "*S"]) -> Int64[Tensor, " K"]:
    """Return the positions of the pixels of a mask in an image laid flat.

    >>> positions(torch.tensor([[False, True], [False, True]]))
    tensor([1, 3])
    """
    return mask.reshape(-1).nonzero().squeeze(1)


@accelerated
def positions_in_box(mask: Bool[Tensor, "*S"], box: Sequence[slice]) -> Int64[Tensor, " K"]:
    """Return the positions, in an image laid flat, of the pixels of a box that lie inside a mask.

    The slices of the box have a start and a stop within the image.
    """
    inside = torch.zeros_like(mask)
    inside[tuple(box)] = mask[tuple(box)]
    return inside.reshape(-1).nonzero().squeeze(1)
