"""The temperature tree (appendix "Networks for LTS and IBTS"), as a function of its weights.

Leaves propose values, gates mix them (Eq. B.2):

    root = g8 (v5*y + 1) + (1 - g8) { g7 [g5 (v1*x + 1) + (1 - g5)(v2*x + 1)]
                                    + (1 - g7) [g6 (v3*x + 1) + (1 - g6)(v4*x + 1)] },   g = sigmoid(c*x)

where x are the inputs (logits, or log-probabilities made from them), y is the image and * is a convolution, 5 wide
with dilation 2. All convolutions over x are computed as one.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from segcal.functional.division import Standardisation, standardised_log_probabilities
from segcal.kernels.dispatch import accelerated

DILATION = 2
REACH = 4
"""Reach of a convolution, in pixels."""

Convolution = tuple[Float[Tensor, "_out _in *_kernel"], Float[Tensor, " _out"]]
"""Weight and bias."""


@accelerated
def tree_root(
    logits: Float[Tensor, "B L *S"],
    image: Float[Tensor, "B C *S"] | None,
    of_logits: Convolution,
    of_image: Convolution | None,
    offset: float,
    *,
    least: float | None = None,
) -> Float[Tensor, "B 1 *S"]:
    """Return the value at the root of the tree, in the precision of the weights.

    Args:
        logits: Logits, or log-probabilities made from them, of any precision.
        image: The image, if the tree has a leaf for it.
        of_logits: Weight `[7 or 8, L, 5, 5(, 5)]` and bias of leaves v1 to v4, gates c5 to c7 and, with an image, c8.
        of_image: Weight `[1, C, 5, 5(, 5)]` and bias of the leaf v5.
        offset: Added to every leaf.
        least: If given, negative values are set to 0 and this is added, so that no value is smaller.
    """
    leaf = None if of_image is None or image is None else convolve(image, *of_image)
    return mixed(convolve(logits, *of_logits), leaf, offset, least)


def mixed(
    nodes: Float[Tensor, "B K *S"], leaf: Float[Tensor, "B 1 *S"] | None, offset: float, least: float | None
) -> Float[Tensor, "B 1 *S"]:
    """Return the root from leaves v1 to v4, gates c5 to c7 and, with the leaf of the image, c8."""
    # at once, so that their gradients are joined in one pass; convolutions interleave nodes, which slows the rest
    v1, v2, v3, v4, *c = nodes.contiguous().unbind(1)
    left, right = torch.lerp(v2, v1, torch.sigmoid(c[0])), torch.lerp(v4, v3, torch.sigmoid(c[1]))
    value = torch.lerp(right, left, torch.sigmoid(c[2]))
    if leaf is not None:
        value = torch.lerp(value, leaf[:, 0], torch.sigmoid(c[3]))
    # gates mix with weights that sum to 1, so the offset of every leaf can be added once, here
    root = value.unsqueeze(1) + offset
    return root if least is None else F.relu(root) + least


@accelerated
def root_of_scores(
    logits: Float[Tensor, "B L *S"],
    standardisation: Standardisation | None,
    image: Float[Tensor, "B C *S"] | None,
    of_logits: Convolution,
    of_image: Convolution | None,
    offset: float,
    *,
    least: float | None = None,
) -> Float[Tensor, "B 1 *S"]:
    """Return the value at the root of a tree that reads standardised log-probabilities, or the logits without them."""
    inputs = logits if standardisation is None else standardised_log_probabilities(logits, *standardisation)
    return tree_root(inputs, image, of_logits, of_image, offset, least=least)


def narrowed(values: Float[Tensor, "*A"], dtype: torch.dtype) -> Float[Tensor, "*A"]:
    """Convert to another precision; values that it cannot hold would become infinite, and the temperature NaN."""
    if values.dtype == torch.float64 and dtype != torch.float64:
        values = values.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
    return values.to(dtype)


def convolve(
    values: Float[Tensor, "B _in *S"], weight: Float[Tensor, "_out _in *_kernel"], bias: Float[Tensor, " _out"]
) -> Float[Tensor, "B _out *S"]:
    """Convolve with reflected edges."""
    found = convolution(padded(values, weight.dtype), weight, bias)
    return found.to(weight.dtype)  # mixed precision ends here


def padded(values: Float[Tensor, "B C *S"], dtype: torch.dtype) -> Float[Tensor, "B C *P"]:
    """Return values in the precision of the weights, with reflected edges."""
    dims = values.ndim - 2
    mode = "reflect" if min(values.shape[2:]) > REACH else "replicate"  # a reflection needs pixels to reflect
    return F.pad(narrowed(values, dtype), [REACH] * (2 * dims), mode=mode)


def convolution(
    values: Float[Tensor, "B _in *P"], weight: Float[Tensor, "_out _in *_kernel"], bias: Float[Tensor, " _out"]
) -> Float[Tensor, "B _out *S"]:
    """Convolve padded values, in the memory order that convolutions are fastest in."""
    apply = F.conv2d if values.ndim == 4 else F.conv3d
    return apply(values.contiguous(memory_format=memory_order(values)), weight, bias, dilation=DILATION)


def memory_order(values: Tensor) -> torch.memory_format:
    """Return the order in which the channels of a pixel lie together."""
    return torch.channels_last if values.ndim == 4 else torch.channels_last_3d
