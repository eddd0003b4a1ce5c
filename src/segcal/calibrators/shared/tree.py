"""The temperature tree as a module: inputs and image to one positive number per pixel (see `functional.tree`)."""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from segcal.functional.division import Standardisation, standardised_log_probabilities
from segcal.functional.probability import probabilities
from segcal.functional.tree import DILATION, Convolution, root_of_scores
from segcal.functional.tree_training import trained_root
from segcal.kernels.dispatch import engine_for
from segcal.types import Image, InputError, Logits, Temperature

Positivity = Literal["relu", "softplus", "exp"]
Init = Literal["normal", "zeros"]
Condition = Literal["class", "confidence"]

CONTEXT = 8
"""Pixels that a slab needs on either side: the reach of the tree, rounded up so that slabs are cut where its compiled
tiles are, and give the same bits."""
_WIDTH = 5
_EPSILON = 1e-8
_BINS = 10
_LEAVES = slice(0, 4)
_ONE_AS_SOFTPLUS = float(np.log(np.expm1(1.0)))


class TemperatureTree(nn.Module):
    """Map the inputs and the image to one positive number per pixel, 1 everywhere before training.

    Args:
        num_classes: L, the number of input channels.
        spatial_dims: 2 or 3.
        image_channels: C; 0 for a tree without the image leaf and its gate.
        positivity: Function that makes the root positive. The paper's ReLU has no gradient below 0; softplus and exp
            always have one.
        root_offset: Added at the root before it is made positive; the released code adds 1, so that T starts at 2.
        init: "normal" draws the leaves from N(0, 0.001); with "zeros" sibling leaves remain equal during training.
        condition: Multiply the result by a learned factor for each predicted class, or for each of ten confidence
            bins; the factors are 1 before training.
    """

    def __init__(
        self,
        num_classes: int,
        spatial_dims: int,
        image_channels: int,
        *,
        positivity: Positivity = "relu",
        root_offset: float = 0.0,
        init: Init = "normal",
        condition: Condition | None = None,
    ) -> None:
        super().__init__()
        # channels: leaves v1 v2 v3 v4, gates c5 c6 c7 and, with an image, c8
        self.of_logits = _zero_convolution(num_classes, 8 if image_channels else 7, spatial_dims)
        self.of_image = _zero_convolution(image_channels, 1, spatial_dims) if image_channels else None
        groups = {None: 0, "class": num_classes, "confidence": _BINS}[condition]
        self.of_group = nn.Parameter(torch.zeros(groups)) if groups else None  # logarithms of the factors
        self.positivity, self.root_offset, self.init, self.condition = positivity, root_offset, init, condition

    def reset(self, generator: torch.Generator) -> None:
        """Set the initial weights: the result is 1 everywhere, or nearly so with random leaves."""
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()
            if self.init == "normal":
                leaves = self.of_logits.weight[_LEAVES]
                leaves.copy_(torch.randn(leaves.shape, generator=generator) * 1e-3)
                if self.of_image is not None:
                    weight = self.of_image.weight
                    weight.copy_(torch.randn(weight.shape, generator=generator) * 1e-3)

    def shrink(self, share: float) -> None:
        """Keep this share of the distance of the root from 1, and of the logarithms of factors of groups.

        Leaves are mixed with weights that sum to 1, so that what is done to each of them is done to the root. Of what
        is not kept at all, not even NaN is left.
        """
        with torch.no_grad():
            if share == 0:
                for parameter in self.parameters():
                    parameter.zero_()
            of_image = () if self.of_image is None else (_learned(self.of_image),)
            leaves = tuple(values[_LEAVES] for values in _learned(self.of_logits))
            for weight, bias in (leaves, *of_image):
                weight.mul_(share)
                bias.mul_(share).sub_((1 - share) * self.root_offset)
            if self.of_group is not None:
                self.of_group.mul_(share)

    def root(
        self,
        logits: Logits,
        image: Image | None = None,
        *,
        standardisation: Standardisation | None = None,
        least: float | None = None,
    ) -> Temperature:
        """Return the value at the root before it is made positive, or rectified and increased by `least`.

        With a standardisation, the tree reads log-probabilities instead of the logits (`functional.division`).
        """
        if self.of_image is not None and image is None:
            raise InputError("this calibrator also reads the image; pass it, or build one with image_channels=0")
        of_image = None if self.of_image is None else _learned(self.of_image)
        image = image if of_image is not None else None
        offset, of_logits = 1.0 + self.root_offset, _learned(self.of_logits)
        if self._trains_alone(logits, image):
            inputs = logits if standardisation is None else standardised_log_probabilities(logits, *standardisation)
            return trained_root(inputs, image, of_logits, of_image, offset, least=least)
        return root_of_scores(logits, standardisation, image, of_logits, of_image, offset, least=least)

    def _trains_alone(self, logits: Logits, image: Image | None) -> bool:
        """Return whether weights alone need gradients, in float32, which is faster by itself."""
        weight = self.of_logits.weight
        if not (torch.is_grad_enabled() and weight.requires_grad and weight.dtype == torch.float32):
            return False
        mixed = any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
        return not mixed and engine_for(logits, image, weight.detach()) is not None

    def forward(
        self, logits: Logits, image: Image | None = None, *, standardisation: Standardisation | None = None
    ) -> Temperature:
        """Return the value of each pixel."""
        if self.positivity == "relu":
            found = self.root(logits, image, standardisation=standardisation, least=_EPSILON)
        else:
            found = self.positive(self.root(logits, image, standardisation=standardisation))
        return self.conditioned(found, logits)

    def conditioned(self, temperature: Temperature, logits: Logits) -> Temperature:
        """Return the temperature times the factor of the pixel's group."""
        if self.of_group is None:
            return temperature
        if self.condition == "class":
            group = logits.argmax(dim=1, keepdim=True)
        else:
            confidence = probabilities(logits).amax(dim=1, keepdim=True)
            group = (torch.ceil(confidence * _BINS).long() - 1).clamp(0, _BINS - 1)
        return temperature * self.of_group.exp()[group]

    def positive(self, root: Tensor) -> Tensor:
        """Return a positive number that is 1 where the root is 1."""
        if self.positivity == "relu":
            return F.relu(root) + _EPSILON
        if self.positivity == "softplus":
            return F.softplus(root + (_ONE_AS_SOFTPLUS - 1.0)) + _EPSILON
        return torch.exp(root - 1.0)


def _zero_convolution(channels: int, outputs: int, dims: int) -> nn.Conv2d | nn.Conv3d:
    """Return a convolution with weights of 0, built without random numbers: those of the caller stay as they are."""
    kind: Any = {2: nn.Conv2d, 3: nn.Conv3d}[dims]
    with torch.device("meta"):
        conv: nn.Conv2d | nn.Conv3d = kind(channels, outputs, _WIDTH, dilation=DILATION)
    conv.to_empty(device=torch.get_default_device())
    for parameter in conv.parameters():
        nn.init.zeros_(parameter)
    return conv


def _learned(conv: nn.Module) -> Convolution:
    return cast(Tensor, conv.weight), cast(Tensor, conv.bias)
