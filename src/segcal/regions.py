"""Where calibration is measured (Sec. 4, "Evaluation Regions"): *All*, *Boundary*, *Local* patches, in 2D and 3D.

A region is a Bool tensor of the labels' shape, or a box; any mask of the user's own will do as well. Ignored pixels
belong to no region.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from segcal.functional.checks import ignored_labels
from segcal.functional.geometry import near_boundary
from segcal.kernels import cpu as kernels
from segcal.types import IgnoreIndex, InputError, Labels, Mask

Box = tuple[slice, ...]

PATCH_SIZE = 72
"""Side of the Local patches in the paper."""

_MOST_COVERED, _WELL_COVERED = 1 / 4, 1 / 8  # shares of an image


def labelled(labels: Labels, ignore_index: IgnoreIndex = None) -> Mask:
    """Every pixel whose label is not ignored."""
    ignored = ignored_labels(ignore_index)
    if labels.device.type == "cpu":  # numpy, because small operations wake PyTorch's threads, which then spin
        return torch.from_numpy(np.isin(labels.numpy(), ignored, invert=True, kind="sort"))
    return ~torch.isin(labels.long(), torch.tensor(ignored, dtype=torch.int64, device=labels.device))


def boundary(labels: Labels, ignore_index: IgnoreIndex = None, *, width: int = 2, ball: bool = False) -> Mask:
    """Pixels whose label differs from a neighbour up to `width` steps away along an axis (or within a ball).

    A neighbour that is ignored counts as different: the edge of a labelled area is a boundary too.
    """
    return _both(near_boundary(labels, width=width, ball=ball), labelled(labels, ignore_index))


def foreground(
    labels: Labels, ignore_index: IgnoreIndex = None, *, background: int | None = None, near: Mask | None = None
) -> Mask:
    """*All*: the labelled pixels outside the background, united with *Boundary*.

    Args:
        labels: True classes.
        ignore_index: Labels that belong to no region.
        background: The class that is left out; None keeps every labelled pixel.
        near: The *Boundary* region, where it is at hand.
    """
    kept = labelled(labels, ignore_index)
    if background is None:
        return kept
    near = boundary(labels, ignore_index) if near is None else near
    if labels.device.type == "cpu":  # as above
        return torch.from_numpy(kept.numpy() & ((labels.numpy() != background) | near.numpy()))
    return kept & ((labels != background) | near)


def _both(one: Mask, other: Mask) -> Mask:
    if one.device.type == "cpu":  # as above
        return torch.from_numpy(one.numpy() & other.numpy())
    return one & other


def local_patch_size(shapes: Iterable[Sequence[int]]) -> int:
    """Return the side of the Local patches that suits images of these shapes.

    It is the paper's 72 unless such a patch covers more than a quarter of the image of median size: Local would then
    measure nearly the same as *All*. For smaller images it is the largest side that covers at most an eighth.

    >>> local_patch_size([(360, 480)]), local_patch_size([(35, 51, 35)]), local_patch_size([(96, 96)])
    (72, 19, 33)
    """
    ordered = sorted((tuple(shape) for shape in shapes), key=math.prod)
    if not ordered or 0 in ordered[0]:
        raise InputError("a patch size needs at least one image, and images of at least one pixel")
    median = ordered[(len(ordered) - 1) // 2]

    def covered(size: int) -> float:
        return math.prod(min(size, length) for length in median) / math.prod(median)

    if covered(PATCH_SIZE) <= _MOST_COVERED:
        return PATCH_SIZE
    return max((size for size in range(1, max(median) + 1) if covered(size) <= _WELL_COVERED), default=1)


def local_patches(
    shape: Sequence[int], *, name: str, size: int = 72, count: int = 10, margin: int = 0, seed: int = 0
) -> list[Box]:
    """Boxes at random places of an image, the same for every method: the generator is seeded by `seed` and `name`.

    A box spans the whole axis where the axis is shorter than `size`. `margin` keeps boxes that far from the edge,
    where there is room.

    >>> [(box[0].start, box[1].stop) for box in local_patches((100, 50), name="a", count=2)]
    [(22, 50), (1, 50)]
    """
    if size < 1 or count < 0 or margin < 0:
        raise InputError(f"patches need size >= 1, count >= 0 and margin >= 0, got {size}, {count} and {margin}")
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    random = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    return [tuple(_interval(length, size, margin, random) for length in shape) for _ in range(count)]


def _interval(length: int, size: int, margin: int, random: np.random.Generator) -> slice:
    size = min(size, length)
    first = min(margin, (length - size) // 2)
    start = int(random.integers(first, length - size - first, endpoint=True))
    return slice(start, start + size)


def box_index(box: Box, inside: Mask) -> Tensor:
    """Positions of the pixels of a box that lie inside a mask `[*S]`, in an image laid flat."""
    return kernels.inside_box(inside.cpu(), box).to(inside.device)
