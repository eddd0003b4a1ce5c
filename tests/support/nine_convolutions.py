"""The paper's tree as it is printed (Eq. B.2): nine convolutions, written out; slow, and independent of segcal."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class NineConvolutions(nn.Module):
    """Leaves v1..v4 and gates c5..c8 over the logits, leaf v5 over the image; seven over the logits without image."""

    def __init__(
        self, classes: int, dims: int, channels: int, positivity: str = "relu", root_offset: float = 0.0
    ) -> None:
        super().__init__()
        conv = nn.Conv2d if dims == 2 else nn.Conv3d
        # padded by hand below: nn.Conv3d pads by reflection only in newer versions
        options = {"kernel_size": 5, "dilation": 2}
        names = ["v1", "v2", "v3", "v4", "c5", "c6", "c7", *(["c8"] if channels else [])]
        self.convs = nn.ModuleDict({name: conv(classes, 1, **options) for name in names})
        if channels:
            self.convs["v5"] = conv(channels, 1, **options)
        self.dims, self.positivity, self.root_offset = dims, positivity, root_offset

    def take_weights(self, of_logits: nn.Module, of_image: nn.Module | None) -> None:
        """Copy the weights of fused convolutions."""
        with torch.no_grad():
            for k, name in enumerate(["v1", "v2", "v3", "v4", "c5", "c6", "c7", "c8"]):
                if name in self.convs:
                    self.convs[name].weight.copy_(of_logits.weight[k : k + 1])
                    self.convs[name].bias.copy_(of_logits.bias[k : k + 1])
            if of_image is not None:
                self.convs["v5"].weight.copy_(of_image.weight)
                self.convs["v5"].bias.copy_(of_image.bias)

    def forward(self, x: Tensor, y: Tensor | None) -> Tensor:
        x = nn.functional.pad(x, [4] * (2 * self.dims), mode="reflect")
        leaf = {name: self.convs[name](x) + 1 for name in ("v1", "v2", "v3", "v4")}
        gate = {name: torch.sigmoid(self.convs[name](x)) for name in self.convs if name.startswith("c")}
        left = gate["c5"] * leaf["v1"] + (1 - gate["c5"]) * leaf["v2"]
        right = gate["c6"] * leaf["v3"] + (1 - gate["c6"]) * leaf["v4"]
        root = gate["c7"] * left + (1 - gate["c7"]) * right
        if y is not None:
            image_leaf = self.convs["v5"](nn.functional.pad(y, [4] * (2 * self.dims), mode="reflect")) + 1
            root = gate["c8"] * image_leaf + (1 - gate["c8"]) * root
        root = root + self.root_offset
        if self.positivity == "relu":
            return torch.relu(root) + 1e-8
        if self.positivity == "softplus":  # shifted so that a root of 1 gives 1
            return torch.log1p(torch.exp(root - 1 + math.log(math.e - 1))) + 1e-8
        return torch.exp(root - 1)
