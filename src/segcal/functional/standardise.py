"""Log-probabilities as inputs of a learned function: no shift of the logits changes them, and they are standardised."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from segcal.functional.probability import at_least_float32
from segcal.kernels.constants import SMALLEST_LOG_PROBABILITY
from segcal.kernels.dispatch import accelerated

Standardisation = tuple[Float64[Tensor, ""], Float[Tensor, " _L"], Float[Tensor, " _L"]]
"""Inverse temperature, and mean and deviation of each class."""


@accelerated
def standardised_log_probabilities(
    logits: Float[Tensor, "B L *S"],
    inverse_temperature: Float64[Tensor, ""],
    mean: Float[Tensor, " L"],
    deviation: Float[Tensor, " L"],
) -> Float[Tensor, "B L *S"]:
    """Return `(log_softmax(inverse_temperature * logits) - mean) / deviation`, in at least float32.

    Log-probabilities below the logarithm of the smallest float32, also that of a logit of minus infinity, are raised to
    it.

    Examples:
        >>> one = torch.ones(2)
        >>> logits, scale = torch.tensor([[1e4, 1e4]]), torch.tensor(2.0).double()
        >>> standardised_log_probabilities(logits, scale, 0 * one, 2 * one).exp()
        tensor([[0.7071, 0.7071]])
    """
    wide = at_least_float32(logits)
    # subtract before scaling: large shifts would otherwise cost precision
    below = (wide - wide.amax(dim=1, keepdim=True)) * inverse_temperature.to(wide.dtype)
    shape = (1, -1, *(1 for _ in wide.shape[2:]))
    log_probs = torch.log_softmax(below, dim=1).clamp(min=SMALLEST_LOG_PROBABILITY)
    return (log_probs - mean.view(shape)) / deviation.view(shape)
