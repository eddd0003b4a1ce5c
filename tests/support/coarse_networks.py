"""Small networks in the form of torchvision's."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Inner(nn.Module):
    """In the form of torchvision's networks: a backbone, a classifier, and interpolation inside."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = Backbone()
        self.classifier = nn.Conv2d(4, 21, 1)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        scores = self.classifier(self.backbone(image)["out"])
        return {"out": F.interpolate(scores, image.shape[2:], mode="bilinear", align_corners=False)}


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 8, stride=8)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        return {"out": self.conv(image)}


class Pair(nn.Module):
    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        return image, image


def network() -> nn.Module:
    return Inner()


def another() -> nn.Module:
    return Inner()
