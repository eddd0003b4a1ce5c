"""Matrix scaling (Guo et al. 2017) with the off-diagonal and intercept regularisation of Kull et al. 2019."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from segcal.calibrators.shared.affine import AffineCalibrator
from segcal.types import IgnoreIndex, InputError


class MatrixScaling(AffineCalibrator):
    """`softmax(W z + b)` of the lowest mean NLL plus penalties (L L + L parameters).

    The penalties are `off_diagonal_penalty` times the mean square of the off-diagonal weights, and `bias_penalty` times
    the mean square of the biases (ODIR). Labels may change.

    Args:
        num_classes: L.
        off_diagonal_penalty: Lambda of ODIR.
        bias_penalty: Mu of ODIR.
        ignore_index: Label, or labels, left out of the fit.
        background: Class left out of the fit except near boundaries; None fits on every labelled pixel.
    """

    method = "matrix"

    def __init__(
        self,
        num_classes: int,
        *,
        off_diagonal_penalty: float = 0.01,
        bias_penalty: float = 0.01,
        ignore_index: IgnoreIndex = None,
        background: int | None = None,
    ) -> None:
        super().__init__(num_classes, ignore_index=ignore_index, background=background, width=num_classes)
        self.off_diagonal_penalty, self.bias_penalty = float(off_diagonal_penalty), float(bias_penalty)
        if not (0 <= self.off_diagonal_penalty < float("inf") and 0 <= self.bias_penalty < float("inf")):
            raise InputError(
                f"penalties must be finite and at least 0, got off_diagonal_penalty={off_diagonal_penalty} "
                f"and bias_penalty={bias_penalty}"
            )

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
