"""Features of a pixel and its surroundings that predict how reliable its confidence is.

None of them changes when a constant is added to all logits of a pixel, and none depends on the order of the classes:

- of the pixel: entropy, margin of the two largest logits (up to 10), and its distance from the nearest predicted
  boundary, in doublings: how many of the boxes that reach 0, 1, 3, 7 and 15 pixels around it hold none;
- of boxes of 9 and of 25 pixels a side around it: means of entropy and margin, and the share of pixels that have a
  neighbour with another predicted label, which says how close and how ragged the predicted boundaries are.

Edges are mirrors: beyond the last pixel lies the last but one. Where an axis is shorter than the window the mirrors see
each other. In 3D the boxes are cubes.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from segcal.functional import context_portable
from segcal.functional.floor import soft_floor
from segcal.functional.probability import at_least_float32
from segcal.kernels.constants import DOUBLINGS, WINDOWS
from segcal.kernels.cpu import context as context_kernels
from segcal.kernels.cpu.compiling import may_compile

FEATURES = (
    "entropy",
    "margin",
    "distance",
    *(f"{name} in {width}" for width in WINDOWS for name in ("entropy", "margin", "boundary")),
)
"""Their names, in order."""

WORDS = (
    "entropy of the pixel",
    "margin of its two largest logits",
    "distance from predicted boundaries",
    *(
        f"{name} the {width}-pixel surroundings"
        for width in WINDOWS
        for name in ("entropy of", "margin in", "share of predicted boundaries in")
    ),
)
"""The features in words."""

REACH = max(max(WINDOWS) // 2, (1 << DOUBLINGS) - 1) + 1
"""How far they look, in pixels: half a window or the largest distance, and the neighbour of the last pixel."""


_LEAST = 1e-30
"""A temperature that no bound reaches."""


def context_features(logits: Float[Tensor, "B L *S"]) -> Float[Tensor, "B F *S"]:
    """Return all features of each pixel, in the order of `FEATURES`.

    >>> context_features(torch.zeros(1, 4, 1, 1)).flatten()
    tensor([1.3863, 0.0000, 5.0000, 1.3863, 0.0000, 0.0000, 1.3863, 0.0000, 0.0000])
    """
    compiles = may_compile(logits) and logits.numel() > 0
    return context_kernels.features(logits) if compiles else context_portable.features(logits)


def context_temperature(
    logits: Float[Tensor, "B L *S"],
    weights: Float64[Tensor, " F"],
    intercept: Float64[Tensor, ""],
    offsets: Float64[Tensor, " L"],
    bounds: tuple[float, float],
    floor: Float64[Tensor, ""],
    softness: Float64[Tensor, ""],
) -> Float[Tensor, "B 1 *S"]:
    """Return `exp(intercept + weights . features + offsets[predicted class])` above the floor and within the bounds.

    A floor of 0 is none.
    """
    least = floor.clamp(min=_LEAST)
    if may_compile(logits, weights, intercept, offsets) and logits.numel() > 0:
        hard = float(softness) == 0
        applied = (max(bounds[0], float(floor)), bounds[1]) if hard else (_LEAST, 1 / _LEAST)
        found = context_kernels.temperature(logits, weights, intercept, offsets, applied)
        if not hard:
            found = soft_floor(found.log(), least.float(), softness.float()).exp().clamp(*bounds)
        return found.to(at_least_float32(logits[:0]).dtype)
    exponent = context_portable.log_temperature(logits, weights, intercept, offsets)
    raised = soft_floor(exponent, least.to(exponent.dtype), softness.to(exponent.dtype))
    return torch.exp(raised).clamp(*bounds)
