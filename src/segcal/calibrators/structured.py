"""Structured vector scaling (SVS of Berta, Holzmueller, Jordan and Bach, AISTATS 2026)."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from segcal.calibrators.base import FitRegion
from segcal.calibrators.report import Learned
from segcal.calibrators.shared.affine import AffineCalibrator
from segcal.calibrators.temperature import TemperatureScaling
from segcal.cases import CaseStream
from segcal.types import Array, check_weight


class StructuredVectorScaling(AffineCalibrator):
    """`softmax((1 + v) * a log p + b)`: temperature scaling and small deviations of each class (2 L + 1 parameters).

    The factor a is the inverse temperature of temperature scaling. The deviations v and biases b are those of least
    mean NLL plus `penalty L / N (|v|^2 + |b|^2)` for N pixels, so that with few pixels temperature scaling is left.
    Labels may change.

    Args:
        num_classes: L.
        penalty: Strength of the penalty on the class deviations, as published; its effect shrinks as pixels are added.
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    method = "svs"
    of_log = one_scale = True

    inverse_temperature: Float64[Tensor, ""]
    """Inverse temperature of temperature scaling; NaN until fitted."""

    def __init__(self, num_classes: int, *, penalty: float = 1.0, **region: Unpack[FitRegion]) -> None:
        super().__init__(num_classes, **region)
        self.penalty = check_weight("penalty", penalty)
        self._register_learned(inverse_temperature=())
        self._pixels = 1

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None = None, settings: Any = None) -> Learned:
        """Find the temperature, then the deviations of least NLL plus penalty."""
        scaling = TemperatureScaling(self.num_classes)._learn(stream)
        self.inverse_temperature.fill_(1 / scaling.details["temperature"])
        self._pixels = scaling.pixels
        return super()._learn(stream)

    def _identity(self) -> Array:
        alpha = float(self.inverse_temperature)
        return np.concatenate([np.full(self.num_classes, alpha), np.zeros(self.num_classes)])

    def _start(self, alpha: float) -> Array:
        return self._identity()

    def _penalties(self) -> tuple[Tensor, Tensor]:
        each = torch.full((self.num_classes,), self.penalty * self.num_classes / self._pixels, dtype=torch.float64)
        return (each / float(self.inverse_temperature) ** 2).unsqueeze(1), each

    def _details(self) -> dict[str, Any]:
        alpha = float(self.inverse_temperature)
        return {
            "temperature": 1 / alpha,
            "deviations": (self.weights.squeeze(1) / alpha - 1).tolist(),
            "biases": self.bias.tolist(),
        }
