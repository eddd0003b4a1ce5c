"""The regions *Boundary* and *All* of a label map (Sec. 4, "Evaluation Regions"), in any number of dimensions."""

from __future__ import annotations

from itertools import product

import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from segcal.functional.checks import ignored_labels
from segcal.kernels.dispatch import on_one_thread
from segcal.types import IgnoreIndex, Labels, Mask


def near_boundary(labels: Integer[Tensor, "B *S"], *, width: int = 2, ball: bool = False) -> Bool[Tensor, "B *S"]:
    """Return the pixels whose label differs from that of a neighbour up to `width` steps away.

    Neighbours lie along the axes, or anywhere in a ball of that radius. Pixels beyond the edge of the image do not
    count as different; pixels at the edge are treated like all others.

    Examples:
        >>> near_boundary(torch.tensor([[0, 0, 0, 0, 1, 1]])).int()
        tensor([[0, 0, 1, 1, 1, 1]], dtype=torch.int32)
    """
    values, near = on_one_thread(labels), on_one_thread(torch.empty_like(labels, dtype=torch.bool))
    near[...] = False
    for offset in _offsets(labels.ndim - 1, width, ball=ball):
        here, there = _overlap(offset)
        differs = values[here] != values[there]
        near[here] |= differs
        near[there] |= differs
    return torch.as_tensor(near)


def labelled(labels: Labels, ignore_index: IgnoreIndex = None) -> Mask:
    """Return the pixels whose label is not ignored."""
    values, kept = on_one_thread(labels.long()), on_one_thread(torch.empty_like(labels, dtype=torch.bool))
    kept[...] = True
    for label in ignored_labels(ignore_index):
        kept &= values != label
    return torch.as_tensor(kept)


def boundary(labels: Labels, ignore_index: IgnoreIndex = None, *, width: int = 2, ball: bool = False) -> Mask:
    """*Boundary*: pixels whose label differs from a neighbour up to `width` steps away along an axis or in a ball.

    An ignored neighbour counts as different: the edge of a labelled area is a boundary too.
    """
    near, kept = near_boundary(labels, width=width, ball=ball), labelled(labels, ignore_index)
    return torch.as_tensor(on_one_thread(near) & on_one_thread(kept))


def foreground(
    labels: Labels, ignore_index: IgnoreIndex = None, *, background: int | None = None, near: Mask | None = None
) -> Mask:
    """*All*: the labelled pixels outside the background, united with *Boundary*.

    Args:
        labels: True classes.
        ignore_index: Labels that belong to no region.
        background: Class outside the region; None keeps every labelled pixel.
        near: The *Boundary* region, if it is already known; by default that of width 2.
    """
    kept = labelled(labels, ignore_index)
    if background is None:
        return kept
    near = boundary(labels, ignore_index) if near is None else near
    return kept & ((labels != background) | near)


def _offsets(spatial: int, width: int, *, ball: bool) -> list[tuple[int, ...]]:
    """Return one of each pair of opposite steps."""
    if ball:
        steps = product(range(-width, width + 1), repeat=spatial)
        return [step for step in steps if sum(s * s for s in step) <= width * width and step > (0,) * spatial]
    return [
        tuple(k if axis == a else 0 for a in range(spatial)) for axis in range(spatial) for k in range(1, width + 1)
    ]


def _overlap(offset: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return slices of the part of an image that an offset copy covers, before and after the offset."""
    here = tuple(slice(max(0, -k), -k if k > 0 else None) for k in offset)
    there = tuple(slice(max(0, k), k if k < 0 else None) for k in offset)
    return (slice(None), *here), (slice(None), *there)
