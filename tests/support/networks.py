"""Small networks and cases that the tests of the integrations share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from segcal import predict_cases
from segcal.calibrators import Calibrator, create
from segcal.types import Case
from support.scenes import simulated

CLASSES = 3


class Convolution(nn.Module):
    """Overconfident logits of an image with one channel."""

    def __init__(self, dims: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = {2: nn.Conv2d, 3: nn.Conv3d}[dims](1, CLASSES, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        return 10 * self.conv(image)


def batch_of(count: int, size: tuple[int, ...], channels: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images with some channels and their labels."""
    cases = simulated(count, num_classes=CLASSES, size=size, seed=seed)
    images = torch.stack([torch.as_tensor(case.image).expand(channels, *size) for case in cases])
    return images.float(), torch.stack([torch.as_tensor(case.labels).long() for case in cases])


def fitted(network: nn.Module, batch: tuple[Tensor, Tensor], method: str = "ts", image_channels: int = 0) -> Calibrator:
    """A calibrator of a network, fitted on a batch."""
    dims = batch[0].ndim - 2
    calibrator = create(method, CLASSES, spatial_dims=dims, image_channels=image_channels)
    options = {"epochs": 1, "learning_rate": 1e-2} if method == "lts" else {}
    return calibrator.fit(list(predict_cases(network, [batch])), **options)


def cases_of(count: int, size: tuple[int, ...]) -> list[Case]:
    """Simulated cases."""
    return simulated(count, num_classes=CLASSES, size=size)
