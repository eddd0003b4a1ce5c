"""Where calibration is measured (Sec. 4, "Evaluation Regions"): *All*, *Boundary*, *Local* patches, in 2D and 3D.

A region is a Bool tensor of the labels' shape, or a box; any mask of the user's own will do as well. Ignored pixels
belong to no region.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from segcal.functional.checks import ignored_labels
from segcal.functional.geometry import near_boundary
from segcal.functional.masks import both, either, positions_in_box, without
from segcal.types import IgnoreIndex, InputError, Labels, Mask

Box = tuple[slice, ...]


def labelled(labels: Labels, ignore_index: IgnoreIndex = None) -> Mask:
    """Every pixel whose label is not ignored."""
    return without(labels, ignored_labels(ignore_index))


def boundary(labels: Labels, ignore_index: IgnoreIndex = None, *, width: int = 2, ball: bool = False) -> Mask:
    """Pixels whose label differs from a neighbour up to `width` steps away along an axis (or within a ball).

    A neighbour that is ignored counts as different: the edge of a labelled area is a boundary too.
    """
    return both(near_boundary(labels, width=width, ball=ball), labelled(labels, ignore_index))


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
    return both(kept, either(without(labels, (background,)), near))


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
    return positions_in_box(inside, box)
