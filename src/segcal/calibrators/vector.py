"""Vector scaling (Guo et al. 2017): each class has a scale and a bias of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from segcal.calibrators.shared.affine import AffineCalibrator


class VectorScaling(AffineCalibrator):
    """`softmax(s * z + b)` with the L scales and L biases of the lowest NLL (2 L parameters).

    The scales multiply the logits as they are, so a constant added to all logits of a pixel matters. Labels may change.

    Args:
        num_classes: L.
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    method = "vector"
    one_scale = True

    def _penalties(self) -> tuple[Tensor, Tensor]:
        none = torch.zeros(self.num_classes, dtype=torch.float64)
        return none.unsqueeze(1), none

    def _details(self) -> dict[str, Any]:
        return {"scales": self.weights.squeeze(1).tolist(), "biases": self.bias.tolist()}
