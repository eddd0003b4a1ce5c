"""Random draws: labels from the probabilities of an image, with their expected number, and pixels for a sample.

Each pixel of a stream has a level, drawn from its position: half of all pixels have level 0, a quarter level 1 and so
on. A class that outgrows its room loses its lowest level, so that what is kept is a fair draw at any time, and depends
neither on how the stream was cut into pieces nor on other classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64, UInt8
from torch import Tensor

SAMPLE_LEVELS = 48
"""Levels of a sample of pixels; half of all pixels have level 0, a quarter level 1 and so on."""

_PART = 1 << 16
"""Logits converted to float64 at a time, which stay in the cache."""


def class_mass(
    logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"], confidence: Float64[Tensor, " N"]
) -> Float64[Tensor, " L"]:
    """Return the sum of each class's probability over the labelled pixels, the number that the network expects.

    A probability is the exponential of the distance to the largest logit, times the confidence of its pixel, which is
    known already: no softmax is computed again. A product of a matrix would depend on the number of threads.
    """
    total = torch.zeros(len(logits), dtype=torch.float64, device=logits.device)
    weights, start = torch.where(labels.reshape(-1) >= 0, confidence, 0.0), 0
    for z, truth in _parts(logits, labels):
        powers = (z - z.amax(dim=0)).exp_()
        total += powers.mul_(weights[start : start + len(truth)]).sum(dim=1)
        start += len(truth)
    return total


def draw_labels(
    logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"], random: np.random.Generator
) -> Int64[Tensor, "*S"]:
    """Draw labels from the softmax of the logits, pixel by pixel; ignored pixels stay ignored.

    With these labels the network is perfectly calibrated, whatever its logits. One number is drawn for each pixel in
    order, so that slabs drawn one after the other equal the whole.
    """
    found = [labels.new_empty(0)]
    for z, truth in _parts(logits, labels):
        uniform = torch.from_numpy(random.random(truth.numel())).to(logits.device)
        powers = (z - z.amax(dim=0)).exp()
        drawn = (powers.cumsum(dim=0)[:-1] <= uniform * powers.sum(dim=0)).sum(dim=0)
        found.append(torch.where(truth >= 0, drawn, truth))
    return torch.cat(found).view(labels.shape)


def _parts(
    logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"]
) -> Iterator[tuple[Float64[Tensor, "L N"], Int64[Tensor, " N"]]]:
    """Yield some pixels at a time in float64."""
    size = max(1, _PART // len(logits))
    parts = torch.split(logits.flatten(1), size, dim=1), torch.split(labels.reshape(-1), size)
    for z, truth in zip(*parts, strict=True):
        yield z.double(), truth


def generator_of(seed: int, name: str) -> np.random.Generator:
    """Return the generator of a case: the same for every method, on every machine, in any order of cases."""
    digest = hashlib.sha256(f"redraw:{seed}:{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


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
