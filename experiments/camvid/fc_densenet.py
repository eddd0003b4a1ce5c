"""FC-DenseNet, "The One Hundred Layers Tiramisu" (Jegou et al., CVPR Workshops 2017), the network of Sec. 4 on CamVid.

Dense blocks, in which every layer sees the outputs of all layers before it, down to 1/32 of the image and up again.
On the way up a block passes on only what its own layers made, or the number of maps would explode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from segcal.types import Image, InputError, Logits

Depth = Literal[56, 67, 103]
Maps = Float[Tensor, "B C H W"]

_PUBLISHED: dict[int, tuple[int, tuple[int, ...], int]] = {
    56: (12, (4, 4, 4, 4, 4), 4),
    67: (16, (5, 5, 5, 5, 5), 5),
    103: (16, (4, 5, 7, 10, 12), 15),
}
"""Growth rate, layers of the blocks on the way down (and, mirrored, up), layers of the bottleneck; Table 2 there."""


class FCDenseNet(nn.Module):
    """Image of three channels to logits, for images of any size from `2 ** len(layers)` pixels a side.

    Args:
        num_classes: L.
        growth: Maps that each layer adds.
        layers: Layers of each dense block on the way down; the way up mirrors them.
        bottleneck: Layers of the block between.
        first: Maps of the first convolution.
        dropout: Share of maps' values dropped after each convolution in training.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        growth: int = 16,
        layers: Sequence[int] = (4, 5, 7, 10, 12),
        bottleneck: int = 15,
        first: int = 48,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.smallest = 2 ** len(layers)
        self.first = nn.Conv2d(3, first, 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        channels, skips = first, []
        for count in layers:
            self.down.append(_DenseBlock(channels, growth, count, dropout))
            channels += count * growth
            skips.append(channels)
            self.shrink.append(_shrink(channels, dropout))
        self.bottleneck = _DenseBlock(channels, growth, bottleneck, dropout)
        self.enlarge, self.up = nn.ModuleList(), nn.ModuleList()
        made = bottleneck * growth
        for count, skip in zip(reversed(layers), reversed(skips), strict=True):
            self.enlarge.append(nn.ConvTranspose2d(made, made, 3, stride=2))
            channels = made + skip
            self.up.append(_DenseBlock(channels, growth, count, dropout))
            made = count * growth
        self.last = nn.Conv2d(channels + made, num_classes, 1)
        self.apply(_initialise)

    def forward(self, image: Image) -> Logits:
        """Logits of the image's height and width."""
        if image.ndim != 4 or min(image.shape[2:]) < self.smallest:
            raise InputError(
                f"images must have shape (B, C, H, W) with sides of at least {self.smallest}, got {tuple(image.shape)}"
            )
        maps, skips = self.first(image), []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            skips.append(block(maps))
            maps = shrink(skips[-1])
        maps = self.bottleneck(maps)
        for enlarge, block in zip(self.enlarge, self.up, strict=True):
            skip, made = skips.pop(), cast(nn.ConvTranspose2d, enlarge).in_channels
            larger = _centre(enlarge(maps[:, -made:]), skip)
            maps = block(torch.cat([larger, skip], dim=1))
        return cast(Tensor, self.last(maps))


def fc_densenet(depth: Depth, num_classes: int) -> FCDenseNet:
    """The network of 56, 67 or 103 layers as published.

    Its 1.4, 3.5 and 9.4 million numbers are the published 1.5, 3.5 and 9.4: the statistics of batch normalisation are
    counted there too, and for 56 layers no way of counting gives more than 1.4.

    >>> sum(parameter.numel() for parameter in fc_densenet(67, 11).parameters())
    3463243
    """
    if depth not in _PUBLISHED:
        raise InputError(f"depth must be one of {', '.join(map(str, _PUBLISHED))}, got {depth}")
    growth, layers, bottleneck = _PUBLISHED[depth]
    return FCDenseNet(num_classes, growth=growth, layers=layers, bottleneck=bottleneck)


class _DenseLayer(nn.Module):
    """Batch normalisation, ReLU, 3x3 convolution and dropout, of all features so far."""

    def __init__(self, channels: int, growth: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, growth, 3, padding=1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, maps: Maps) -> Maps:
        active = torch.relu_(self.norm(maps))
        return cast(Tensor, self.dropout(self.conv(active)))


class _DenseBlock(nn.Module):
    """The maps themselves, then what each layer made."""

    def __init__(self, channels: int, growth: int, count: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_DenseLayer(channels + k * growth, growth, dropout) for k in range(count))

    def forward(self, maps: Maps) -> Maps:
        for layer in self.layers:
            maps = torch.cat([maps, layer(maps)], dim=1)
        return maps


def _shrink(channels: int, dropout: float) -> nn.Sequential:
    """Transition down: as many maps of half the size."""
    return nn.Sequential(
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels, channels, 1),
        nn.Dropout(dropout),
        nn.MaxPool2d(2),
    )


def _centre(maps: Maps, like: Maps) -> Maps:
    """The middle of enlarged maps, of the size of `like`: sizes need not be divisible by 32."""
    top, left = ((maps.shape[axis] - like.shape[axis]) // 2 for axis in (2, 3))
    return maps[:, :, top : top + like.shape[2], left : left + like.shape[3]]


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
