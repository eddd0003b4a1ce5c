"""A soft floor under temperatures: `log T = log floor + softness softplus((u - log floor) / softness)`.

Far above the floor it is the identity, far below it is the floor, and in between it has a slope, so that a fit through
it sees how each number moves each pixel. A softness of 0 is the hard floor `max(u, log floor)`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

_SMALLEST = 1e-6


class Floor(NamedTuple):
    """The least temperature (0 for none), and over how much of log T the floor takes effect (0 for a hard floor)."""

    value: float
    softness: float

    def inverse(self, log_temperature: float) -> float:
        """Return the exponent that the floor maps to a log-temperature; one at or below the floor counts as just above.

        Examples:
            >>> round(Floor(1.0, 0.1).inverse(2.0), 6)
            2.0
        """
        if self.softness == 0:
            return log_temperature
        least = float(np.log(self.value))
        above = max((log_temperature - least) / self.softness, 0.05)
        return least + self.softness * float(above + np.log(-np.expm1(-above)))


NO_FLOOR = Floor(0.0, 0.0)


def soft_floor(
    log_temperature: Float[Tensor, "*A"], floor: Float[Tensor, ""], softness: Float[Tensor, ""]
) -> Float[Tensor, "*A"]:
    """Return log-temperatures that are never below `log floor`, for a floor above 0.

    Examples:
        >>> soft_floor(torch.tensor([-9.0, 0.0, 9.0]), torch.tensor(1.0), torch.tensor(0.5)).round(decimals=4)
        tensor([0.0000, 0.3466, 9.0000])
        >>> soft_floor(torch.tensor([-9.0, 9.0]), torch.tensor(1.0), torch.tensor(0.0))
        tensor([0., 9.])
    """
    least = floor.log()
    above = log_temperature - least
    rest = torch.log1p(torch.exp(-above.abs() / softness.clamp(min=_SMALLEST)))
    return least + above.clamp(min=0) + softness * rest
