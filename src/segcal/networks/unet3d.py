"""The 3D U-Net of the paper's experiment on LPBA40 (Cicek et al., MICCAI 2016; appendix "Implementation").

Two convolutions per level, halving the volume and doubling the channels on the way down, and the reverse on the way
up. Convolutions are padded, so a patch of 72^3 voxels gives 72^3 logits; those near its border see padding instead of
anatomy, which is why prediction keeps only the central 40^3 (`experiments.lpba40.tiling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from segcal.types import Image, InputError, Logits

Maps = Float[Tensor, "B C D H W"]


class UNet3D(nn.Module):
    """Map an image to logits of the same size.

    Batch normalisation, unlike instance normalisation, treats a voxel in the same way in a patch and in the whole
    volume, so the tiled prediction of a volume has no seams.

    Args:
        num_classes: L.
        image_channels: C.
        width: Channels of the first convolution; level k ends with `width * 2 ** (k + 1)` channels.
        levels: Number of resolutions, the full one included.

    Examples:
        >>> sum(parameter.numel() for parameter in UNet3D(57).parameters())  # the network of the paper
        19075865
    """

    def __init__(self, num_classes: int, *, image_channels: int = 1, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        if min(num_classes, image_channels, width, levels) < 1:
            raise InputError(
                "num_classes, image_channels, width and levels must be at least 1, "
                f"got {num_classes}, {image_channels}, {width} and {levels}"
            )
        self.factor = 2 ** (levels - 1)
        outputs = [width * 2 ** (level + 1) for level in range(levels)]
        pairs = list(pairwise(outputs))
        first = _ConvBlock((image_channels, width, outputs[0]))
        self.down = nn.ModuleList([first, *(_ConvBlock((above, above, below)) for above, below in pairs)])
        self.enlarge = nn.ModuleList(_enlarge(below) for _, below in reversed(pairs))
        self.up = nn.ModuleList(_ConvBlock((below + skip, skip, skip)) for skip, below in reversed(pairs))
        self.last = nn.Conv3d(outputs[0], num_classes, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv3d | nn.ConvTranspose3d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(cast(Tensor, self.last.bias))

    def forward(self, image: Image) -> Logits:
        """Return logits of the image's size; sizes need not be divisible by the network's factor."""
        if image.ndim != 5 or 0 in image.shape:
            raise InputError(f"images must have shape (B, C, D, H, W), got {tuple(image.shape)}")
        space = image.shape[2:]
        maps, skips = _padded(image, self.factor), list[Tensor]()
        for level, block in enumerate(self.down):
            maps = block(maps if level == 0 else F.max_pool3d(maps, 2))
            skips.append(maps)
        for enlarge, block, skip in zip(self.enlarge, self.up, skips[-2::-1], strict=True):
            maps = block(torch.cat([enlarge(maps), skip], dim=1))
        return cast(Tensor, self.last(maps))[:, :, : space[0], : space[1], : space[2]]


class _ConvBlock(nn.Sequential):
    """Two 3^3 convolutions, each followed by batch normalisation and ReLU."""

    def __init__(self, channels: Sequence[int]) -> None:
        layers = list[nn.Module]()
        for before, after in pairwise(channels):
            # the bias would be removed again by the normalisation
            layers += [nn.Conv3d(before, after, 3, padding=1, bias=False), nn.BatchNorm3d(after), nn.ReLU(inplace=True)]
        super().__init__(*layers)


def _enlarge(channels: int) -> nn.Sequential:
    """Double the size with a transposed convolution of stride 2."""
    up = nn.ConvTranspose3d(channels, channels, 2, stride=2, bias=False)
    return nn.Sequential(up, nn.BatchNorm3d(channels), nn.ReLU(inplace=True))


def _padded(image: Image, factor: int) -> Image:
    """Extend each axis at its end to a multiple of `factor`, with zeros."""
    missing = [-length % factor for length in image.shape[:1:-1]]
    return F.pad(image, [part for each in missing for part in (0, each)]) if any(missing) else image
