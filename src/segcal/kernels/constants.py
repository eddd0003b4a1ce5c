"""Constants that kernels and their plain forms share; each is defined only here."""

from __future__ import annotations

import math

import torch

CELLS = 1 << 16
"""Cells of a fine histogram of confidences or probabilities."""
OCTAVES = 64
"""Octaves of 512 cells, for probabilities below 1/2, and as many for 1 - probability."""

WINDOWS = (9, 25)
"""Sides of the boxes of the context features, in pixels."""
MARGIN_CAP = 10.0
"""Nats beyond which a larger margin carries no information, only the scale of the logits."""
DOUBLINGS = 4
"""Doublings of the distance within which a boundary is searched: 0, 1, 3, 7 and 15 pixels."""
LOWEST = -80.0
"""A logit further below the largest counts as this far below it: sums do not change, and nothing overflows."""

LOSS_HEAD = 5
"""First sums of `log_linear.loss_sums`: pixels, NLL, loss, pixels whose temperature is clipped and pixels below the
floor; then come the derivatives."""

LEAST_TEMPERATURE = 1e-30
"""The least bound of temperatures; as a floor under them it stands for none."""
LARGEST_TEMPERATURE = 1e30
"""The largest bound of temperatures."""

TIE_BREAK = 1e-9
"""Share of a probability that is added to its mapped value, so that equal values keep their order."""
SMALLEST = float(torch.finfo(torch.float64).tiny)
"""The least mapped probability, so that its logarithm is finite."""
NEAREST = 2.0**-52
"""The least distance of a probability to 0 and to 1 in beta calibration, as in the published packages in float64."""

SMALLEST_LOG_PROBABILITY = math.log(torch.finfo(torch.float32).tiny)
"""The least log-probability, that of the smallest float32 (-87.3), as in `logits_from_probabilities`: a probability of
0 is then the same whether it came as a logit or as a number, and no product with it is infinite."""


def least_gap(dtype: torch.dtype) -> float:
    """Return the least difference of two numbers that differ even if denormal numbers are flushed to 0.

    float16 is compared as float32, where it has no denormal numbers.
    """
    limits = torch.finfo(dtype)
    return limits.tiny * limits.eps if dtype == torch.float16 else limits.tiny
