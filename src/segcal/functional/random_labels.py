"""What the probabilities of an image expect of its labels: how many pixels of each class, and labels drawn from them.

Compiled passes over the pixels on the CPU, in float64 whatever the precision of the logits.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from segcal.kernels.cpu.compiling import BLOCK, as_numpy, compiled, exp_below_zero, over_pixels
from segcal.types import Array


@compiled
def _totals(logits: Array, at: int, n: int, top: Array, total: Array) -> None:
    """The largest logit of `n` pixels from `at` on, and the sum of exponentials below it."""
    top[:n] = logits[0, at : at + n]
    for c in range(1, logits.shape[0]):
        row = logits[c, at : at + n]
        for i in range(n):
            top[i] = max(top[i], row[i])
    total[:] = 0.0
    for c in range(logits.shape[0]):
        row = logits[c, at : at + n]
        for i in range(n):
            total[i] += exp_below_zero(np.float64(row[i]) - np.float64(top[i]))


@compiled
def _mass(logits: Array, labels: Array, partial: Array, start: int, stop: int) -> None:
    top, total = np.empty(BLOCK, logits.dtype), np.empty(BLOCK)
    lanes = np.zeros((logits.shape[0], BLOCK))  # sums side by side, for the vector units
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        _totals(logits, at, n, top, total)
        for i in range(n):  # an ignored pixel weighs nothing
            total[i] = 1.0 / total[i] if labels[at + i] >= 0 else 0.0
        for c in range(logits.shape[0]):
            row, lane = logits[c, at : at + n], lanes[c]
            for i in range(n):
                lane[i] += exp_below_zero(np.float64(row[i]) - np.float64(top[i])) * total[i]
    for c in range(logits.shape[0]):
        partial[start // BLOCK, c] = lanes[c].sum()


def class_mass(logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"]) -> Float64[Tensor, " L"]:
    """The sum of each class's probability over the labelled pixels: how many pixels of it the network expects."""
    z = as_numpy(logits.reshape(logits.shape[0], -1))
    partial = np.zeros((-(-z.shape[1] // BLOCK), z.shape[0]))
    over_pixels(_mass, z.shape[1], z, as_numpy(labels.reshape(-1)), partial)
    return torch.from_numpy(partial.sum(axis=0))  # numpy sums pairwise


@compiled
def _draw(logits: Array, labels: Array, uniform: Array, drawn: Array, start: int, stop: int) -> None:
    top, total, passed = np.empty(BLOCK, logits.dtype), np.empty(BLOCK), np.empty(BLOCK)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        _totals(logits, at, n, top, total)
        here = drawn[at : at + n]
        for i in range(n):
            total[i] *= uniform[at + i]
            passed[i] = 0.0
            here[i] = 0
        for c in range(logits.shape[0] - 1):
            row = logits[c, at : at + n]
            for i in range(n):
                passed[i] += exp_below_zero(np.float64(row[i]) - np.float64(top[i]))
                here[i] += passed[i] <= total[i]
        for i in range(n):
            here[i] = here[i] if labels[at + i] >= 0 else labels[at + i]


def draw_labels(
    logits: Float[Tensor, "L *S"], labels: Int64[Tensor, "*S"], random: np.random.Generator
) -> Int64[Tensor, "*S"]:
    """Labels drawn from the softmax of the logits, pixel by pixel; ignored pixels stay ignored.

    With these labels the network is perfectly calibrated, whatever its logits. One number is drawn for each pixel in
    order, so slabs drawn one after the other are the whole.
    """
    z = as_numpy(logits.reshape(logits.shape[0], -1))
    drawn = np.empty(z.shape[1], np.int64)
    over_pixels(_draw, z.shape[1], z, as_numpy(labels.reshape(-1)), random.random(z.shape[1]), drawn)
    return torch.from_numpy(drawn).view(labels.shape)


def generator_of(seed: int, name: str) -> np.random.Generator:
    """The random numbers of a case: the same for every method and on every machine, whatever cases come before."""
    digest = hashlib.sha256(f"redraw:{seed}:{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))
