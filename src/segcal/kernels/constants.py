"""Numbers that the kernels and their plain forms share; each is defined here alone."""

from __future__ import annotations

import math

import torch

CELLS = 1 << 16
"""Cells of a fine histogram of confidences or probabilities."""
LOW_OCTAVES = 12  # of 1,024 cells, for confidences below 1/2; the other 52 are for 1 - confidence

WINDOWS = (9, 25)
"""Sides of the boxes whose means are features, in pixels."""
MARGIN_CAP = 10.0
"""Nats beyond which a larger margin says nothing more, and would only carry the size of the logits."""
DOUBLINGS = 4
"""Of the distance within which a boundary is looked for: 0, 1, 3, 7 and 15 pixels."""
LOWEST = -80.0
"""What a logit counts as if it lies further below the largest: no sum notices, and nothing overflows."""

SMALLEST_LOG_PROBABILITY = math.log(torch.finfo(torch.float32).tiny)
"""Log-probabilities below that of the smallest float32 (-87.3) count as this much, as in `logits_from_probabilities`:
a probability of 0 is then the same whether it came as logits or as a number, and no product with it is infinite."""
