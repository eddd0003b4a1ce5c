"""The temperature tree while it is trained: the root with gradients for the weights alone, in few passes.

The inputs need no gradient, so the backward pass consists of the gradient of each node, found in one pass, and the
correlation of those gradients with the inputs. In a padded image laid flat every tap of a filter is a shift, so the
correlation is a product of matrices of few rows and as many columns as there are pixels.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from segcal.functional.tree import DILATION, REACH, Convolution, narrowed
from segcal.kernels.dispatch import accelerated

_WIDTH = 5
_ROWS = 64
"""Rows of inputs up to which all taps across lines are multiplied at once."""
_STEP = 8192
"""Pixels multiplied at a time."""
_CHANNELS = 16
"""Channels of a volume from which on products are faster than the backward pass of a dilated convolution."""
_ORDERS: dict[int, tuple[torch.memory_format, Any]] = {
    4: (torch.channels_last, F.conv2d),
    5: (torch.channels_last_3d, F.conv3d),
}


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
    found = convolved(logits, *of_logits)
    leaf = None if of_image is None or image is None else convolved(image, *of_image)
    root: Tensor = _Mixed.apply(found, leaf, offset, least)  # type: ignore[no-untyped-call]
    return root


def convolved(
    values: Float[Tensor, "B C *S"], weight: Float[Tensor, "K C *W"], bias: Float[Tensor, " K"]
) -> Float[Tensor, "B K *S"]:
    """Convolve with reflected edges, with gradients for weight and bias but not for the values."""
    dims = values.ndim - 2
    mode = "reflect" if min(values.shape[2:]) > REACH else "replicate"  # a reflection needs pixels to reflect
    padded = F.pad(narrowed(values, weight.dtype), [REACH] * (2 * dims), mode=mode)
    found: Tensor = _Convolved.apply(padded, weight, bias)  # type: ignore[no-untyped-call]
    return found


class _Convolved(torch.autograd.Function):
    """A dilated convolution of padded values that need no gradient."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        order, convolution = _ORDERS[padded.ndim]
        ctx.save_for_backward(padded)
        found: Tensor = convolution(padded.contiguous(memory_format=order), weight, bias, dilation=DILATION)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor]:
        (padded,), (gradient,) = ctx.saved_tensors, gradients
        return None, weight_gradient(padded, gradient), gradient.flatten(2).sum(dim=(0, 2))


@accelerated
def weight_gradient(padded: Float[Tensor, "B C *P"], gradient: Float[Tensor, "B K *S"]) -> Float[Tensor, "K C *W"]:
    """Return the sum over pixels of the gradient at a pixel times the padded values at each tap of the filter."""
    if padded.ndim == 5 and padded.shape[1] >= _CHANNELS:
        return gradient_by_products(padded, gradient)
    order, dims = _ORDERS[padded.ndim][0], padded.ndim - 2
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


def gradient_by_products(padded: Float[Tensor, "B C *P"], gradient: Float[Tensor, "B K *S"]) -> Float[Tensor, "K C *W"]:
    """Return the same as products of matrices."""
    dims, nodes, channels = padded.ndim - 2, gradient.shape[1], padded.shape[1]
    total = padded.new_zeros(_WIDTH ** (dims - 1), nodes * _WIDTH, channels)
    for values, slope in zip(padded, gradient, strict=True):
        _add_products(values, slope, total)
    shape = (*(_WIDTH,) * (dims - 1), nodes, _WIDTH, channels)  # taps across lines, node, tap along lines, channel
    return total.view(shape).permute(dims - 1, dims + 1, *range(dims - 1), dims).contiguous()


def _add_products(values: Float[Tensor, "C *P"], slope: Float[Tensor, "K *S"], total: Float[Tensor, "T K5 C"]) -> None:
    """Add the products of gradients and shifted values of one image, a few thousand pixels at a time in the cache."""
    flat, wide = values.flatten(1), values.new_zeros(len(slope), *values.shape[1:])
    wide[(slice(None), *(slice(0, length) for length in slope.shape[1:]))] = slope
    reach = DILATION * (_WIDTH - 1)
    shifted = F.pad(wide.flatten(1), [reach, 0])
    across = DILATION * values.shape[-1]  # from one tap to the next, across lines and across slices
    slices = [DILATION * math.prod(values.shape[-2:]) * tap for tap in range(_WIDTH)] if values.ndim == 4 else [0]
    many = _WIDTH * len(flat) <= _ROWS  # few channels: the taps across lines are one product
    for start in range(0, flat.shape[1], _STEP):
        stop = min(start + _STEP, flat.shape[1])
        taps = [shifted[:, start + reach - DILATION * tap : stop + reach - DILATION * tap] for tap in range(_WIDTH)]
        rows = torch.stack(taps, dim=1).flatten(0, 1)  # the gradients, shifted by every tap along lines
        for k, first in enumerate(slices):
            own = total[k * _WIDTH : (k + 1) * _WIDTH]
            lines = [_from(flat, start + first + across * tap, stop - start) for tap in range(_WIDTH)]
            if many and lines[-1].shape[1] == stop - start:
                found = rows @ torch.cat(lines).t()
                own += found.view(len(rows), _WIDTH, -1).transpose(0, 1)
            else:
                for tap, line in enumerate(lines):
                    own[tap].addmm_(rows[:, : line.shape[1]], line.t())


def _from(flat: Float[Tensor, "C M"], start: int, length: int) -> Float[Tensor, "C _"]:
    """Return columns from `start` on, fewer where the image ends: gradients are 0 there."""
    return flat[:, min(start, flat.shape[1]) : start + length]


class _Mixed(torch.autograd.Function):
    """Leaves and gates mixed to the root."""

    @staticmethod
    def forward(ctx: Any, found: Tensor, leaf: Tensor | None, offset: float, least: float | None) -> Tensor:
        ctx.save_for_backward(found, leaf)
        ctx.settings = offset, least
        return mixed(found, leaf, offset, least)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        found, leaf = ctx.saved_tensors
        nodes, of_leaf = mixed_gradient(gradients[0], found, leaf, *ctx.settings)
        return nodes, None if leaf is None else of_leaf, None, None


def mixed(
    found: Float[Tensor, "B K *S"], leaf: Float[Tensor, "B 1 *S"] | None, offset: float, least: float | None
) -> Float[Tensor, "B 1 *S"]:
    """Return the root from leaves v1 to v4, gates c5 to c7 and, with the leaf of the image, c8."""
    root = _parts(found, leaf)[0] + offset
    return (root if least is None else F.relu(root) + least).unsqueeze(1)


def mixed_gradient(
    gradient: Float[Tensor, "B 1 *S"],
    found: Float[Tensor, "B K *S"],
    leaf: Float[Tensor, "B 1 *S"] | None,
    offset: float,
    least: float | None,
) -> tuple[Float[Tensor, "B K *S"], Float[Tensor, "B 1 *S"]]:
    """Return the gradient of every node and that of the leaf of the image (0 without one)."""
    root, value, left, right, gates = _parts(found, leaf)
    slope = gradient.squeeze(1)
    if least is not None:
        slope = slope * (root + offset > 0)
    v1, v2, v3, v4 = found[:, :4].unbind(1)
    mixing, of_leaf = [], torch.zeros_like(slope)
    if leaf is not None:
        mixing, of_leaf = [slope * (leaf.squeeze(1) - value)], slope * gates[:, 3]
        slope = slope * (1 - gates[:, 3])
    of_left, of_right = slope * gates[:, 2], slope * (1 - gates[:, 2])
    leaves = [of_left * gates[:, 0], of_left * (1 - gates[:, 0]), of_right * gates[:, 1], of_right * (1 - gates[:, 1])]
    choices = torch.stack([of_left * (v1 - v2), of_right * (v3 - v4), slope * (left - right), *mixing], dim=1)
    return torch.cat([torch.stack(leaves, dim=1), choices * gates * (1 - gates)], dim=1), of_leaf.unsqueeze(1)


def _parts(found: Tensor, leaf: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the root without its offset, the value without the image, both branches, and the gates."""
    v1, v2, v3, v4 = found[:, :4].unbind(1)
    gates = torch.sigmoid(found[:, 4:])
    left, right = torch.lerp(v2, v1, gates[:, 0]), torch.lerp(v4, v3, gates[:, 1])
    value = torch.lerp(right, left, gates[:, 2])
    root = value if leaf is None else torch.lerp(value, leaf.squeeze(1), gates[:, 3])
    return root, value, left, right, gates
