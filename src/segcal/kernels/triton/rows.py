"""Convolutions of the temperature tree in training on CUDA: products of matrices, line by line, and their gradient.

Libraries choose slow kernels for dilated convolutions with few results, above all for the gradient of their weights. A
line of results is a sum over the lines that it reads, and for each of these a product of weights `[O, 5 C]` with five
shifted copies of the line `[5 C, W]`. The same products, transposed, give the gradient of the weights. All lines of a
batch are one call; sums are exact float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

_TAPS, _DILATION, _REACH = 5, 2, 4


class RowProducts(torch.autograd.Function):
    """Convolve `[B, C, *S]` with weights `[O, C, 5, 5(, 5)]`, 5 wide with dilation 2, edges reflected."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return `[B, O, *S]`; values need no gradient."""
        size, outputs = values.shape[2:], weight.shape[0]
        mode = "reflect" if min(size) > _REACH else "replicate"  # a reflection needs pixels to reflect
        padded = F.pad(values, [_REACH] * (2 * len(size)), mode=mode)
        ctx.save_for_backward(padded)
        ctx.shape = weight.shape
        found = bias.view(1, -1, 1).expand(math.prod((len(values), *size[:-1])), outputs, size[-1])
        for taps, lines in zip(_by_line(weight), _lines(padded, size), strict=True):
            found = torch.baddbmm(found, taps.expand(len(lines), *taps.shape), lines)
        return found.view(len(values), *size[:-1], outputs, size[-1]).movedim(-2, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor]:
        """Return the gradients of weight and bias."""
        (padded,) = ctx.saved_tensors
        size = gradient.shape[2:]
        own = gradient.movedim(1, -2).reshape(-1, gradient.shape[1], size[-1])
        parts = [torch.bmm(own, lines.mT).sum(dim=0) for lines in _lines(padded, size)]
        outputs, channels, *width = ctx.shape
        of_weight = torch.stack(parts).view(-1, outputs, channels, _TAPS).permute(1, 2, 0, 3)
        return None, of_weight.reshape(outputs, channels, *width), own.sum(dim=(0, 2))


def _by_line(weight: Tensor) -> Tensor:
    """Return the weights of each line that is read: `[5 or 25, O, 5 C]`."""
    outputs, channels = weight.shape[:2]
    flat = weight.reshape(outputs, channels, -1, _TAPS).permute(2, 0, 1, 3)
    return flat.reshape(-1, outputs, channels * _TAPS)


def _lines(padded: Tensor, size: Sequence[int]) -> Iterator[Tensor]:
    """Yield five shifted copies `[lines, 5 C, W]` of each of the 5 or 25 lines that a line of results reads."""
    channels, *across, along = padded.stride()[1:]
    shape = (len(padded), *size[:-1], padded.shape[1], _TAPS, size[-1])
    strides = (padded.stride(0), *across, channels, _DILATION * along, along)
    for place in range(_TAPS ** len(across)):
        steps = [place // _TAPS**k % _TAPS for k in reversed(range(len(across)))]
        first = sum(_DILATION * step * stride for step, stride in zip(steps, across, strict=True))
        yield padded.as_strided(shape, strides, first).reshape(-1, padded.shape[1] * _TAPS, size[-1])
