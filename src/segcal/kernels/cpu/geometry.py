"""Boundaries of predicted labels for the context features, compiled for the CPU."""

from __future__ import annotations

import math

import numpy as np

from segcal.kernels.cpu.compiling import compiled
from segcal.types import Array


@compiled
def _mark_changes(labels: Array, near: Array, step: int, width: int) -> None:
    """Mark, in rows of pixels, both of any two whose labels differ and that are up to `width` times `step` apart."""
    for row in range(labels.shape[0]):
        line, marks = labels[row], near[row]
        for offset in range(step, min(width * step, line.shape[0] - 1) + 1, step):
            here, there, first, second = line[:-offset], line[offset:], marks[:-offset], marks[offset:]
            for i in range(here.shape[0]):
                first[i] |= np.uint8(here[i] != there[i])
            for i in range(here.shape[0]):
                second[i] |= np.uint8(here[i] != there[i])


@compiled
def _mark_changes_in_lines(labels: Array, near: Array, length: int, width: int) -> None:
    """Do the same along lines of `length` pixels, which lie one after the other: one long pass, whatever the length."""
    differs, n = np.empty(labels.shape[0], np.uint8), labels.shape[0]
    for offset in range(1, min(width, length - 1) + 1):
        here, there = labels[: n - offset], labels[offset:]
        for i in range(n - offset):
            differs[i] = np.uint8(here[i] != there[i])
        for end in range(length, n + 1, length):  # a line does not continue in the next
            differs[end - offset : end] = 0
        first, second = near[: n - offset], near[offset:]
        for i in range(n - offset):
            first[i] |= differs[i]
        for i in range(n - offset):
            second[i] |= differs[i]


def mark_boundary(labels: Array, near: Array, width: int) -> None:
    """Set `near` of labels `[B, *S]` to 1 where a label up to `width` steps away along an axis differs, else to 0."""
    near.fill(0)
    last = labels.ndim - 1
    for axis in range(1, last if labels.size else 1):
        step = math.prod(labels.shape[axis + 1 :])
        rows = (-1, labels.shape[axis] * step)
        _mark_changes(labels.reshape(rows), near.reshape(rows), step, width)
    if labels.size and last:
        _mark_changes_in_lines(labels.reshape(-1), near.reshape(-1), labels.shape[last], width)
