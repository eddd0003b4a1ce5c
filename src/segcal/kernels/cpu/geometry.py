"""Boundaries of labels on the CPU, on one thread; see `segcal.kernels.cpu` for why."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.cpu.compiling import as_numpy, compiled
from segcal.kernels.dispatch import DECLINED
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


def near_boundary(labels: Tensor, *, width: int = 2, ball: bool = False) -> Tensor:
    """Twin of `segcal.functional.geometry.near_boundary`, for neighbours along the axes."""
    if ball:
        return DECLINED
    values = as_numpy(labels)
    if values.size and values.min() >= -(1 << 15) and values.max() < 1 << 15:
        values = values.astype(np.int16)  # a vector register holds four times as many
    near = np.zeros(values.shape, np.uint8)
    for axis in range(1, values.ndim if values.size else 1):
        step = math.prod(values.shape[axis + 1 :])
        rows = (-1, values.shape[axis] * step)
        _mark_changes(values.reshape(rows), near.reshape(rows), step, width)
    return torch.from_numpy(near.view(np.bool_))
