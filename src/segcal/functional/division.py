"""Logits divided by temperatures: as logits, probabilities or standardised log-probabilities, and their NLL.

Logits and probabilities keep every predicted label. Temperatures may have a soft floor,

    log T = log floor + softness softplus((u - log floor) / softness).

Far above the floor it is the identity, far below it is the floor, and in between it has a slope, so that a fit through
it sees how each number moves each pixel. A softness of 0 is the hard floor `max(u, log floor)`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from segcal.functional.pixels import all_finite
from segcal.functional.probability import at_least_float32, keep_labels, probabilities
from segcal.kernels.constants import SMALLEST_LOG_PROBABILITY
from segcal.kernels.dispatch import accelerated, checking_kernels, has_values, on_one_thread, with_denormals
from segcal.types import InputError

_SHARPEST = 1e-6
"""The least softness that floors divide by."""

Standardisation = tuple[Float64[Tensor, ""], Float[Tensor, " _L"], Float[Tensor, " _L"]]
"""Inverse temperature, and mean and deviation of each class."""


class NotFiniteError(InputError):
    """Logits that must be finite are not; `checks.check_logits` says where, and replaces minus infinity."""


def require_finite(logits: Float[Tensor, "*A"]) -> None:
    """Raise if a logit is NaN or infinite; in a graph that is recorded nothing can be looked at."""
    if has_values(logits) and not all_finite(logits):
        raise NotFiniteError("logits must be finite, got NaN or infinity; correct them")


def kernels_check_finite(logits: Float[Tensor, "B L *S"], *others: Float[Tensor, "..."]) -> bool:
    """Return whether kernels that compute temperatures from these tensors check the logits as they read them.

    They then replace minus infinity, which marks an impossible class, and flag NaN and plus infinity
    (`found_nonfinite`).
    """
    module = checking_kernels(logits, *others)
    return module is not None and bool(module.checks_finite(logits, *others))


def found_nonfinite(logits: Float[Tensor, "B L *S"]) -> bool:
    """Return whether a kernel has flagged logits that are not finite since this was last asked.

    They may have been other logits, so that these have to be looked at before they are refused.
    """
    module = checking_kernels(logits)
    return module is not None and bool(module.found_nonfinite(logits))


@with_denormals
@accelerated
def scaled_probabilities(
    logits: Float[Tensor, "B L *S"], temperature: Float[Tensor, "B 1 *S"]
) -> Float[Tensor, "B L *S"]:
    """Return the softmax of `logits / temperature` in the precision of the logits, with the argmax of the logits.

    Raises `NotFiniteError`; kernels look for NaN and infinity in their one pass, and some replace minus infinity as
    `possible_logits` does.
    """
    wide = at_least_float32(logits)
    if wide is not logits:  # half precision, which few kernels read
        return keep_labels(scaled_probabilities(wide, temperature.to(wide.dtype)).to(logits.dtype), logits)
    require_finite(logits)
    return keep_labels(_divided_softmax(logits, temperature), logits)


def softmax_of(logits: Float[Tensor, "B L *S"]) -> Float[Tensor, "B L *S"]:
    """Return the softmax in float32, by the kernel that gives the same bits for any number of threads."""
    one = torch.ones((), device=logits.device)
    return scaled_probabilities(single(logits), one.expand(len(logits), 1, *logits.shape[2:]))


def single(logits: Float[Tensor, "B L *S"]) -> Float[Tensor, "B L *S"]:
    """Return finite logits in float32; those in float64 relative to the largest, so that no precision is lost."""
    if logits.dtype != torch.float64:
        return logits.float()
    below = logits - logits.amax(dim=1, keepdim=True)
    return below.clamp(min=torch.finfo(torch.float32).min).float()


@with_denormals
@accelerated
def scaled_logits(logits: Float[Tensor, "B L *S"], temperature: Float[Tensor, "B 1 *S"]) -> Float[Tensor, "B L *S"]:
    """Return `logits / temperature` in the precision of the logits, with the argmax of the logits.

    Raises `NotFiniteError`; kernels look for NaN and infinity in their one pass, and some replace minus infinity as
    `possible_logits` does.
    """
    wide = at_least_float32(logits)
    if wide is not logits:
        return keep_labels(finite_in(scaled_logits(wide, temperature.to(wide.dtype)), logits.dtype), logits)
    require_finite(logits)
    return keep_labels(finite_in(divided(logits, temperature), logits.dtype), logits)


def _divided_softmax(logits: Float[Tensor, "B L *S"], temperature: Float[Tensor, "B 1 *S"]) -> Float[Tensor, "B L *S"]:
    """Return the softmax of `logits / temperature`, with gradients.

    The largest logit is subtracted first, as in the kernels: quotients of several could all exceed the largest number.
    """
    below = finite_in(logits - logits.detach().amax(dim=1, keepdim=True), logits.dtype)
    return probabilities(finite_in(divided(below, temperature), logits.dtype))


def divided(logits: Float[Tensor, "B L *S"], temperature: Float[Tensor, "B 1 *S"]) -> Float[Tensor, "B L *S"]:
    """Return `logits / temperature` in float32 or float64, with gradients."""
    wide = at_least_float32(logits)
    return wide / temperature.to(wide.dtype)


def scaled_within(
    values: Float[Tensor, "*S"], factor: Float[Tensor, ""], floor: Float[Tensor, ""], bounds: tuple[float, float]
) -> Float[Tensor, "*S"]:
    """Return `values * factor` within the bounds and not below the floor."""
    given, numbers = on_one_thread(values), [factor.to(values.dtype), floor.to(values.dtype)]
    scale, least = numbers if given is values else [number.numpy() for number in numbers]
    return torch.as_tensor((given * scale).clip(*bounds).clip(least))


def finite_in(logits: Float[Tensor, "B L *S"], dtype: torch.dtype) -> Float[Tensor, "B L *S"]:
    """Convert logits to a precision and keep them finite in it: softmax of infinity is NaN."""
    largest = torch.finfo(dtype).max * (1 - torch.finfo(dtype).eps)  # keep_labels needs a little room below
    return logits.clamp(-largest, largest).to(dtype)


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
    rest = torch.log1p(torch.exp(-above.abs() / softness.clamp(min=_SHARPEST)))
    return least + above.clamp(min=0) + softness * rest


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


@accelerated
def scaled_nll(
    logits: Float[Tensor, "B L *S"], labels: Int64[Tensor, "B *S"], temperature: Float[Tensor, "B 1 *S"]
) -> tuple[Float[Tensor, "B *S"], Float[Tensor, "B *S"]]:
    """Return the NLL of `logits / temperature` at each pixel and its derivative; both 0 where the label is negative.

    With the probabilities p = softmax(z / T) of the logits z and the true class y, the derivative is
    `(z_y - sum p z) / T^2`.
    """
    below = logits - logits.amax(dim=1, keepdim=True)
    valid = labels >= 0
    truth = below.gather(1, labels.clamp(min=0).unsqueeze(1)).squeeze(1)
    scaled, warm = below / temperature, temperature.squeeze(1)
    nll = torch.logsumexp(scaled, dim=1) - truth / warm
    slope = (truth - (torch.softmax(scaled, dim=1) * below).sum(dim=1)) / warm.square()
    return nll * valid, slope * valid


class _SummedNLL(torch.autograd.Function):
    """The sum of `scaled_nll`, differentiable in the temperature only."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, temperature: Tensor) -> Tensor:
        nll, slope = scaled_nll(logits, labels, temperature)
        ctx.save_for_backward(slope)
        return nll.sum(dtype=torch.float64).to(temperature.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, Tensor]:
        (slope,) = ctx.saved_tensors
        return None, None, (gradients[0] * slope).unsqueeze(1)


def summed_nll(
    logits: Float[Tensor, "B L *S"], labels: Int64[Tensor, "B *S"], temperature: Float[Tensor, "B 1 *S"]
) -> Float[Tensor, ""]:
    """Return the NLL of `logits / temperature`, summed over the pixels with a label, with its gradient in T."""
    total: Tensor = _SummedNLL.apply(logits, labels, temperature)  # type: ignore[no-untyped-call]
    return total
