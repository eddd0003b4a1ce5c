"""Vector scaling (Guo et al. 2017): each class has a scale and a bias of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from segcal.calibrators.shared.affine import AffineCalibrator
from segcal.types import IgnoreIndex


class VectorScaling(AffineCalibrator):
    """`softmax(s * z + b)` with the L scales and L biases of the lowest NLL (2 L parameters).

    The scales multiply the logits as they are, so a constant added to all logits of a pixel matters. Labels may change.

    Args:
        num_classes: L.
        ignore_index: Label, or labels, left out of the fit.
        background: Class left out of the fit except near boundaries; None fits on every labelled pixel.
    """

    method = "vector"

    def __init__(self, num_classes: int, *, ignore_index: IgnoreIndex = None, background: int | None = None) -> None:
        super().__init__(num_classes, ignore_index=ignore_index, background=background, width=1)

    def _penalties(self) -> tuple[Tensor, Tensor]:
        none = torch.zeros(self.num_classes, dtype=torch.float64)
        return none.unsqueeze(1), none

    def _details(self) -> dict[str, Any]:
        return {"scales": self.weights.squeeze(1).tolist(), "biases": self.bias.tolist()}
