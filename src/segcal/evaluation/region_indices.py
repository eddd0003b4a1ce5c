"""The pixels of one case that each region and each *Local* patch consists of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from segcal.cases import StreamedCase
from segcal.evaluation.protocol import Protocol
from segcal.functional.masks import positions
from segcal.regions import Box, Region, box_index

LEAST_SHARE = 0.05
"""Fraction of a Local patch that must be labelled, and lie in *All*, for the patch to count: the ECE of a few pixels is
mostly noise, and Local-Max would report the patch with the fewest. Such a patch is left out like an empty one."""


@dataclass(frozen=True)
class RegionIndices:
    """Positions of the pixels of every region and patch of one case, laid flat.

    Attributes:
        labels: The labels `[*S]` of the case on the CPU, -1 where ignored.
        regions: Positions of each region's pixels, in the order of the regions.
        boxes: The Local patches.
        patches: Positions of each patch's pixels that lie in *All*; none of a patch that is left out.
        studied: The same for each further patch size.
    """

    labels: Tensor
    regions: Sequence[Tensor]
    boxes: Sequence[Box]
    patches: Sequence[Tensor]
    studied: Mapping[int, Sequence[Tensor]]

    @classmethod
    def of(cls, case: StreamedCase, protocol: Protocol, regions: Iterable[Region]) -> RegionIndices:
        """Compute them; there are patches only if a region summarises them."""
        labelled, chosen = protocol.labelled(case), list(regions)
        masks = [region.mask(labelled) for region in chosen if region.mask is not None]
        inside = labelled.all[0]
        local = any(region.mask is None for region in chosen)
        sizes = (protocol.patch_side, *protocol.patch_sizes) if local else ()
        boxes = {size: protocol.boxes(labelled, size) for size in sizes}
        least = 0.0 if protocol.patch_rule == "paper" else LEAST_SHARE
        patches = {size: [_enough(box_index(box, inside), box, least) for box in own] for size, own in boxes.items()}
        return cls(
            labelled.labels[0],
            [positions(mask) for mask in masks],
            boxes.get(protocol.patch_side, []),
            patches.get(protocol.patch_side, []),
            {size: patches[size] for size in sizes[1:]},
        )

    @property
    def every(self) -> list[Tensor]:
        """Positions of the regions, then of the patches, then of the patches of each further size."""
        return [*self.regions, *self.patches, *(patch for patches in self.studied.values() for patch in patches)]


def _enough(pixels: Tensor, box: Box, least: float) -> Tensor:
    """Return the pixels of a patch, or none of them if they are too few."""
    size = math.prod(side.stop - side.start for side in box)
    return pixels if len(pixels) >= least * size else pixels[:0]
