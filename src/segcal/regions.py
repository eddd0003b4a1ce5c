"""Regions in which calibration is measured (Sec. 4, "Evaluation Regions"): *All*, *Boundary*, *Local*, in 2D and 3D.

A region is a Bool tensor with the shape of the labels; a patch is a box. Ignored pixels belong to no region.

`REGIONS` is the registry. A new region is a function from `LabelledCase` to a mask and one line there; it is then
measured by `segcal.evaluate` and shown in every table and page.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from segcal.functional.checks import IGNORED
from segcal.functional.counting import positions, positions_in_box
from segcal.functional.geometry import boundary, foreground
from segcal.types import Case, InputError, Labels, Mask

Box = tuple[slice, ...]

PATCH_SIZE = 72
"""Side of the Local patches in the paper."""

WITHOUT_MAJORITY = ""
"""Name of the region *All* as it is with the majority class as background; no table shows it."""

_MOST_COVERED, _WELL_COVERED = 1 / 4, 1 / 8  # shares of an image


@dataclass(frozen=True)
class LabelledCase:
    """A case and its checked labels: what regions are computed from.

    Attributes:
        case: The case.
        labels: Its labels `[1, *S]`, -1 where ignored.
        background: Class outside *All*; None if there is none.
        boundary_width: How far *Boundary* reaches, in pixels.
        boundary_ball: Whether it reaches in every direction instead of along the axes.
    """

    case: Case
    labels: Labels
    background: int | None = None
    boundary_width: int = 2
    boundary_ball: bool = False

    @cached_property
    def boundary(self) -> Mask:
        """The region *Boundary*."""
        return boundary(self.labels, IGNORED, width=self.boundary_width, ball=self.boundary_ball)

    @cached_property
    def all(self) -> Mask:
        """The region *All*."""
        near = None if self.background is None else self.boundary
        return foreground(self.labels, IGNORED, background=self.background, near=near)


RegionFunction = Callable[[Case, Labels], Mask]
"""A region of a user: from a case and its labels `[1, *S]` (-1 where ignored) to a mask `[1, *S]`."""


@dataclass(frozen=True)
class Region:
    """A region of the registry.

    Attributes:
        name: Name in results.
        title: Name in tables and figures.
        meaning: What it holds, in a few words.
        mask: Function that computes it; None for the regions that summarise the *Local* patches of an image.
    """

    name: str
    title: str
    meaning: str = ""
    mask: Callable[[LabelledCase], Mask] | None = None


REGIONS: Mapping[str, Region] = {
    region.name: region
    for region in (
        Region("all", "All", "labelled pixels outside the background, and Boundary", lambda labelled: labelled.all),
        Region("boundary", "Boundary", "pixels near a change of the label", lambda labelled: labelled.boundary),
        Region("local-avg", "Local-Avg", "the average patch"),
        Region("local-max", "Local-Max", "the worst patch of each image"),
    )
}
"""Every region by name, in the order of tables."""


def chosen_regions(regions: Sequence[str] | Mapping[str, RegionFunction] | None) -> dict[str, Region]:
    """Return the regions to measure by name: all of the registry, some of it, or all of it and those of a user.

    *All* is always among them, because the Local patches and the headline figures are taken inside it.
    """
    if regions is None:
        return dict(REGIONS)
    if isinstance(regions, Mapping):
        if taken := [name for name in regions if name in REGIONS]:
            raise InputError(f"a region cannot be called '{taken[0]}', which segcal defines; choose another name")
        own = {name: Region(name, name, mask=_own_mask(name, function)) for name, function in regions.items()}
        masked = {name: region for name, region in REGIONS.items() if region.mask is not None}
        return {**masked, **own, **REGIONS}
    names = [regions] if isinstance(regions, str) else regions
    if unknown := [name for name in names if name not in REGIONS]:
        known = ", ".join(REGIONS)
        raise InputError(f"regions must be names among {known}, or functions by name, got '{unknown[0]}'")
    return {name: region for name, region in REGIONS.items() if name == "all" or name in names}


def region_title(name: str) -> str:
    """Return the title of a region; that of a user's own region is its name."""
    return REGIONS[name].title if name in REGIONS else name


def region_notes(names: Sequence[str], *, whole: bool) -> list[str]:
    """Return what the regions of the registry among `names` hold; with `whole` there is no background to leave out.

    Examples:
        >>> region_notes(["all", "mine"], whole=True)
        ['All: every labelled pixel']
    """
    notes = {name: f"{REGIONS[name].title}: {REGIONS[name].meaning}" for name in names if name in REGIONS}
    if whole and "all" in notes:
        notes["all"] = f"{REGIONS['all'].title}: every labelled pixel"
    return [*notes.values()]


def in_table_order(names: Sequence[str]) -> list[str]:
    """Return names of regions in the order of the registry, followed by a user's own."""
    return [*(name for name in REGIONS if name in names), *(name for name in names if name not in REGIONS)]


def _own_mask(name: str, function: RegionFunction) -> Callable[[LabelledCase], Mask]:
    def mask(labelled: LabelledCase) -> Mask:
        found, labels = function(labelled.case, labelled.labels), labelled.labels
        if found.dtype != torch.bool or found.shape != labels.shape:
            raise InputError(
                f"the function of region '{name}' must return a Bool mask of shape {tuple(labels.shape)}, "
                f"got {found.dtype} of shape {tuple(found.shape)}"
            )
        return found & (labels >= 0)

    return mask


@dataclass(frozen=True)
class RegionIndices:
    """Positions of the pixels of every region and patch of one case, laid flat.

    Attributes:
        labels: The labels `[*S]` of the case on the CPU, -1 where ignored.
        regions: Positions of each region's pixels, by its name.
        boxes: The patches, by their size: that of the Local regions, then further ones.
        patches: Positions of each patch's pixels that lie in *All*, none of a patch that is left out, by their size.
    """

    labels: Tensor
    regions: Mapping[str, Tensor]
    boxes: Mapping[int, Sequence[Box]]
    patches: Mapping[int, Sequence[Tensor]]

    @classmethod
    def of(
        cls,
        labelled: LabelledCase,
        regions: Iterable[Region],
        boxes: Mapping[int, Sequence[Box]],
        least: float,
        majority: int | None,
    ) -> RegionIndices:
        """Compute them; a patch of which less than the share `least` lies in *All* is left out like an empty one."""
        masks = {region.name: region.mask(labelled) for region in regions if region.mask is not None}
        if majority is not None:
            masks[WITHOUT_MAJORITY] = foreground(labelled.labels, IGNORED, background=majority, near=labelled.boundary)
        patches = {size: [_patch(labelled.all[0], box, least) for box in own] for size, own in boxes.items()}
        return cls(labelled.labels[0], {name: positions(mask) for name, mask in masks.items()}, boxes, patches)

    @property
    def every(self) -> list[Tensor]:
        """Positions of the regions, then of the patches of each size."""
        return [*self.regions.values(), *chain.from_iterable(self.patches.values())]


def _patch(inside: Tensor, box: Box, least: float) -> Tensor:
    """Return the pixels of a patch that lie inside, or none of them if they are too few."""
    pixels, size = positions_in_box(inside, box), math.prod(side.stop - side.start for side in box)
    return pixels if len(pixels) >= least * size else pixels[:0]


def local_patch_size(shapes: Iterable[Sequence[int]]) -> int:
    """Return the side of the Local patches that suits images of these shapes.

    It is the paper's 72 unless such a patch covers more than a quarter of the image of median size: Local would then
    measure nearly the same as *All*. For smaller images it is the largest side that covers at most an eighth.

    Examples:
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
    """Return boxes at random places of an image, the same for every method.

    The generator is seeded by `seed` and `name`. A box spans the whole axis where the axis is shorter than `size`.
    `margin` keeps boxes that far from the edge where there is room.

    Examples:
        >>> tuple((box[0].start, box[1].stop) for box in local_patches((100, 50), name="a", count=2))
        ((22, 50), (1, 50))
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
