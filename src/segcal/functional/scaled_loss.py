"""The NLL of scaled logits and its derivative in the temperature, in one pass: the loss of trained temperatures.

With logits z, true class y and probabilities p = softmax(z / T),

    NLL = log sum exp(z / T) - z_y / T,        dNLL / dT = (z_y - sum p z) / T^2.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from segcal.kernels.dispatch import accelerated


@accelerated
def scaled_nll(
    logits: Float[Tensor, "B L *S"], labels: Int64[Tensor, "B *S"], temperature: Float[Tensor, "B 1 *S"]
) -> tuple[Float[Tensor, "B *S"], Float[Tensor, "B *S"]]:
    """Return the NLL of `logits / temperature` at each pixel and its derivative; both 0 where the label is negative."""
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
