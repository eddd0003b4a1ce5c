"""The temperature tree while it is trained: the root with gradients for the weights alone.

The inputs need no gradient, so the backward pass of a convolution is the correlation of the gradient with the inputs.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from segcal.functional.tree import DILATION, Convolution, convolution, memory_order, mixed, padded
from segcal.kernels.dispatch import accelerated

_WIDTH = 5


def trained_root(
    logits: Float[Tensor, "B L *S"],
    image: Float[Tensor, "B C *S"] | None,
    of_logits: Convolution,
    of_image: Convolution | None,
    offset: float,
    *,
    least: float | None = None,
) -> Float[Tensor, "B 1 *S"]:
    """Return what `segcal.functional.tree.tree_root` returns, with gradients for the weights but not for the inputs."""
    leaf = None if of_image is None or image is None else convolved(image, *of_image)
    return mixed(convolved(logits, *of_logits), leaf, offset, least)


def convolved(
    values: Float[Tensor, "B C *S"], weight: Float[Tensor, "K C *W"], bias: Float[Tensor, " K"]
) -> Float[Tensor, "B K *S"]:
    """Convolve with reflected edges, with gradients for weight and bias but not for the values."""
    found: Tensor = _Convolved.apply(padded(values, weight.dtype), weight, bias)  # type: ignore[no-untyped-call]
    return found


class _Convolved(torch.autograd.Function):
    """A dilated convolution of padded values that need no gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return convolution(values, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor]:
        (values,), (gradient,) = ctx.saved_tensors, gradients
        return None, weight_gradient(values, gradient), gradient.flatten(2).sum(dim=(0, 2))


@accelerated
def weight_gradient(padded: Float[Tensor, "B C *P"], gradient: Float[Tensor, "B K *S"]) -> Float[Tensor, "K C *W"]:
    """Return the sum over pixels of the gradient at a pixel times the padded values at each tap of the filter."""
    order, dims = memory_order(padded), padded.ndim - 2
    weight = padded.new_empty(gradient.shape[1], padded.shape[1], *(_WIDTH,) * dims)  # of which only the shape is used
    ones, zeros, spread = ([value] * dims for value in (1, 0, DILATION))
    _, found, _ = torch.ops.aten.convolution_backward(
        gradient.contiguous(memory_format=order),
        padded.contiguous(memory_format=order),
        weight,
        None,
        ones,
        zeros,
        spread,
        False,
        zeros,
        1,
        [False, True, False],
    )
    result: Tensor = found
    return result
