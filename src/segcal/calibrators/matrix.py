"""Matrix scaling (Guo et al. 2017) with the off-diagonal and intercept regularisation of Kull et al. 2019."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from segcal.calibrators.base import FitRegion
from segcal.calibrators.shared.affine import AffineCalibrator
from segcal.types import check_weight


class MatrixScaling(AffineCalibrator):
    """`softmax(W z + b)` of the lowest mean NLL plus penalties (L L + L parameters).

    The penalties are `off_diagonal_penalty` times the mean square of the off-diagonal weights, and `bias_penalty` times
    the mean square of the biases (ODIR). Labels may change.

    Args:
        num_classes: L.
        off_diagonal_penalty: Lambda of ODIR.
        bias_penalty: Mu of ODIR.
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    method = "matrix"

    def __init__(
        self,
        num_classes: int,
        *,
        off_diagonal_penalty: float = 0.01,
        bias_penalty: float = 0.01,
        **region: Unpack[FitRegion],
    ) -> None:
        super().__init__(num_classes, **region)
        self.off_diagonal_penalty = check_weight("off_diagonal_penalty", off_diagonal_penalty)
        self.bias_penalty = check_weight("bias_penalty", bias_penalty)

    def _penalties(self) -> tuple[Tensor, Tensor]:
        classes = self.num_classes
        others = 1 - torch.eye(classes, dtype=torch.float64)
        every = torch.ones(classes, dtype=torch.float64)
        return self.off_diagonal_penalty / max(1, classes * (classes - 1)) * others, self.bias_penalty / classes * every

    def _details(self) -> dict[str, Any]:
        others = self.weights - self.weights.diag().diag()
        return {
            "diagonal": self.weights.diag().tolist(),
            "largest_off_diagonal": float(others.abs().max()),
            "biases": self.bias.tolist(),
        }
