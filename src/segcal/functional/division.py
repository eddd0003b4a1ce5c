"""Logits divided by temperatures, as logits or as probabilities, without changing any predicted label."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from segcal.functional.pixels import all_finite
from segcal.functional.probability import at_least_float32, keep_labels, probabilities
from segcal.kernels.denormals import with_denormals
from segcal.kernels.dispatch import accelerated, checking_kernels, has_values, on_one_thread
from segcal.types import InputError


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
