"""VoteNet+ (Ding et al. 2020), the network of the paper's multi-atlas experiment (Sec. 4.4).

A 3D U-Net that sees a target image and a warped atlas image side by side and gives one logit per voxel: whether the
label of the warped atlas is the label of the target there. A one-logit output `z` is the two-class output `[0, z]`.
"""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from experiments.lpba40.tiling import OUTSIDE
from segcal.types import InputError

Volumes = Float[Tensor, "B C D H W"]


class VoteNet(nn.Module):
    """Target and warped atlas image to the logit that the atlas is right, for volumes of any size.

    Args:
        features: Feature maps at full resolution; they double with every halving of the resolution.
        depth: How often the resolution is halved.
    """

    def __init__(self, features: int = 16, depth: int = 3) -> None:
        super().__init__()
        if features < 1 or depth < 0:
            raise InputError(f"features must be at least 1 and depth at least 0, got {features} and {depth}")
        widths = [features * 2**level for level in range(depth + 1)]
        self.multiple = 2**depth
        self.down = nn.ModuleList(_Block(before, after) for before, after in zip([2, *widths], widths, strict=False))
        self.enlarge = nn.ModuleList(
            nn.ConvTranspose3d(2 * width, width, 2, stride=2) for width in reversed(widths[:-1])
        )
        self.up = nn.ModuleList(_Block(2 * width, width) for width in reversed(widths[:-1]))
        self.last = nn.Conv3d(features, 1, 1)

    def forward(self, target: Volumes, atlas: Volumes) -> Volumes:
        """Logits `[B, 1, D, H, W]` of images `[B, 1, D, H, W]`."""
        if target.shape != atlas.shape or target.ndim != 5 or target.shape[1] != 1:
            raise InputError(
                "target and warped atlas must both have shape (B, 1, D, H, W), "
                f"got {tuple(target.shape)} and {tuple(atlas.shape)}"
            )
        space = target.shape[2:]
        maps, skips = self._padded(torch.cat([target, atlas], dim=1)), []
        for level, block in enumerate(self.down):
            maps = block(F.max_pool3d(maps, 2) if level else maps)
            skips.append(maps)
        skips.pop()
        for enlarge, block in zip(self.enlarge, self.up, strict=True):
            maps = block(torch.cat([skips.pop(), enlarge(maps)], dim=1))
        return cast(Tensor, self.last(maps))[:, :, : space[0], : space[1], : space[2]]

    def _padded(self, maps: Volumes) -> Volumes:
        """Sides rounded up to a multiple of the coarsest voxel; beyond its edge an image continues as it ends."""
        missing = [-length % self.multiple for length in maps.shape[2:]]
        if not any(missing):
            return maps
        return F.pad(maps, (0, missing[2], 0, missing[1], 0, missing[0]), mode="replicate")


class VoteLoss(nn.Module):
    """Summed binary cross-entropy of a batch, and the number of voxels it is over, as the training loop wants it."""

    def __init__(self, network: VoteNet) -> None:
        super().__init__()
        self.network = network

    def forward(self, target: Volumes, atlas: Volumes, right: Volumes, labels: Volumes) -> tuple[Tensor, Tensor]:
        """Return the loss over the voxels of the volumes; those labelled `OUTSIDE` are padding."""
        logits = self.network(target, atlas).float()
        kept = (labels != OUTSIDE).float()
        loss = F.binary_cross_entropy_with_logits(logits, right.float(), weight=kept, reduction="sum")
        return loss, kept.sum()


class _Block(nn.Module):
    """Twice: convolution, instance normalisation, leaky ReLU."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(before, after, 3, padding=1, bias=False),
            nn.InstanceNorm3d(after, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
            nn.Conv3d(after, after, 3, padding=1, bias=False),
            nn.InstanceNorm3d(after, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
        )

    def forward(self, maps: Volumes) -> Volumes:
        return cast(Tensor, self.layers(maps))
