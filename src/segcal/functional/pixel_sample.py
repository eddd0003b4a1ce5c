"""Pixels of a stream that a sample keeps: each has a level, drawn from its position in the stream.

Half of all pixels have level 0, a quarter level 1 and so on. A class that outgrows its room loses its lowest level, so
that what is kept is a fair draw at any time, and depends neither on how the stream was cut into pieces nor on other
classes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

SAMPLE_LEVELS = 48
"""Levels of a sample of pixels; half of all pixels have level 0, a quarter level 1 and so on."""


class Sample(NamedTuple):
    """Pixels ordered by class; `starts[c]` is the first of class c.

    A pixel of class c stands for `importance[c]` pixels of the stream.
    """

    logits: Float64[Tensor, "L N"]
    labels: Int64[Tensor, " N"]
    importance: Float64[Tensor, " L"]
    starts: Int64[Tensor, " L_and_one"]


def sample_levels(labels: Int64[Tensor, " N"], first: int, counts: Int64[Tensor, "L levels"]) -> UInt8[Tensor, " N"]:
    """Return the level of each pixel and add it to the counts of its class, in place; `first` positions came before.

    The level is the number of trailing ones of the position hashed by splitmix64, so that the draw has no period that
    the rows of an image could share.
    """
    hashed = torch.arange(first + 1, first + 1 + len(labels), device=labels.device) * _signed(0x9E3779B97F4A7C15)
    hashed = (hashed ^ _shifted(hashed, 30)) * _signed(0xBF58476D1CE4E5B9)
    hashed = (hashed ^ _shifted(hashed, 27)) * _signed(0x94D049BB133111EB)
    zeros = ~(hashed ^ _shifted(hashed, 31)) | (1 << (SAMPLE_LEVELS - 1))
    levels = (zeros & -zeros).double().log2().round().long()  # the lowest bit alone is a power of 2
    valid = labels >= 0
    key = labels[valid] * SAMPLE_LEVELS + levels[valid]
    counts += torch.bincount(key, minlength=counts.numel()).view(counts.shape)
    return levels.to(torch.uint8)


def _signed(value: int) -> int:
    """Return the int64 with the bits of an unsigned constant."""
    return value - (1 << 64) if value >> 63 else value


def _shifted(values: Int64[Tensor, " N"], by: int) -> Int64[Tensor, " N"]:
    """Shift right as unsigned numbers."""
    return (values >> by) & ((1 << (64 - by)) - 1)
