"""Training of the temperature tree on the CPU: leaves and gates mixed, the gradient of each, and that of filters."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.cpu.compiling import BLOCK, as_numpy, compiled, exp_float32, over_pixels
from segcal.kernels.cpu.filter_gradient import filter_gradient
from segcal.kernels.dispatch import DECLINED
from segcal.types import Array

_NODES = 8


@compiled
def _load(found: Array, at: int, n: int, nodes: Array) -> None:
    """Copy the nodes of `n` pixels, which lie together for each pixel, to rows; gates become numbers in 0..1."""
    many = found.shape[1]
    for i in range(n):
        for k in range(many):
            nodes[k, i] = found[at + i, k]
    for k in range(4, many):
        row = nodes[k]
        for i in range(n):
            row[i] = np.float32(1) / (np.float32(1) + exp_float32(-row[i]))


@compiled
def _mix(found: Array, leaf: Array, offset: float, least: float, root: Array, start: int, stop: int) -> None:
    nodes = np.empty((_NODES, BLOCK), np.float32)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        _load(found, at, n, nodes)
        v1, v2, v3, v4 = nodes[0], nodes[1], nodes[2], nodes[3]
        g5, g6, g7, g8 = nodes[4], nodes[5], nodes[6], nodes[7]
        out = root[at : at + n]
        for i in range(n):
            left, right = v2[i] + g5[i] * (v1[i] - v2[i]), v4[i] + g6[i] * (v3[i] - v4[i])
            out[i] = right + g7[i] * (left - right)
        if leaf.shape[0]:
            y = leaf[at : at + n]
            for i in range(n):
                out[i] += g8[i] * (y[i] - out[i])
        for i in range(n):
            out[i] = out[i] + offset
        if least >= np.float32(0):
            for i in range(n):
                out[i] = max(out[i], np.float32(0)) + least


@compiled
def _mix_gradient(
    gradient: Array, found: Array, leaf: Array, offset: float, least: float, rates: Array, of_leaf: Array,
    start: int, stop: int,
) -> None:  # fmt: skip
    nodes, one = np.empty((_NODES, BLOCK), np.float32), np.float32(1)
    for at in range(start, stop, BLOCK):
        n = min(BLOCK, stop - at)
        _load(found, at, n, nodes)
        v1, v2, v3, v4 = nodes[0], nodes[1], nodes[2], nodes[3]
        g5, g6, g7, g8 = nodes[4], nodes[5], nodes[6], nodes[7]
        for i in range(n):
            left, right = v2[i] + g5[i] * (v1[i] - v2[i]), v4[i] + g6[i] * (v3[i] - v4[i])
            value = right + g7[i] * (left - right)
            slope = gradient[at + i]
            root = value
            if leaf.shape[0]:
                root = value + g8[i] * (leaf[at + i] - value)
            if least >= np.float32(0) and root + offset <= np.float32(0):
                slope = np.float32(0)
            if leaf.shape[0]:
                rates[7, at + i] = slope * (leaf[at + i] - value) * g8[i] * (one - g8[i])
                of_leaf[at + i] = slope * g8[i]
                slope = slope * (one - g8[i])
            of_left, of_right = slope * g7[i], slope * (one - g7[i])
            rates[0, at + i] = of_left * g5[i]
            rates[1, at + i] = of_left * (one - g5[i])
            rates[2, at + i] = of_right * g6[i]
            rates[3, at + i] = of_right * (one - g6[i])
            rates[4, at + i] = of_left * (v1[i] - v2[i]) * g5[i] * (one - g5[i])
            rates[5, at + i] = of_right * (v3[i] - v4[i]) * g6[i] * (one - g6[i])
            rates[6, at + i] = slope * (left - right) * g7[i] * (one - g7[i])


def mixed(found: Tensor, leaf: Tensor | None, offset: float, least: float | None) -> Tensor:
    """Twin of `segcal.functional.tree_training.mixed`, in float32."""
    if not _ready(found, leaf):
        return DECLINED
    result = np.empty((len(found), found[0, 0].numel()), np.float32)
    for k in range(len(found)):
        numbers = np.float32(offset), np.float32(-1 if least is None else least)
        over_pixels(_mix, result.shape[1], _pixels(found[k]), _leaf(leaf, k), *numbers, result[k])
    return torch.from_numpy(result).view(len(found), 1, *found.shape[2:])


def mixed_gradient(
    gradient: Tensor, found: Tensor, leaf: Tensor | None, offset: float, least: float | None
) -> tuple[Tensor, Tensor]:
    """Twin of `segcal.functional.tree_training.mixed_gradient`, in float32."""
    if not _ready(found, leaf) or gradient.dtype != torch.float32:
        return DECLINED  # type: ignore[return-value]
    count, nodes = found[0, 0].numel(), found.shape[1]
    rates, of_leaf = np.empty((len(found), nodes, count), np.float32), np.zeros((len(found), count), np.float32)
    slope = as_numpy(gradient).reshape(len(found), -1)
    for k in range(len(found)):
        numbers = np.float32(offset), np.float32(-1 if least is None else least)
        arrays = (slope[k], _pixels(found[k]), _leaf(leaf, k))
        over_pixels(_mix_gradient, count, *arrays, *numbers, rates[k], of_leaf[k])
    size = found.shape[2:]
    return torch.from_numpy(rates).view(len(found), nodes, *size), torch.from_numpy(of_leaf).view(len(found), 1, *size)


def weight_gradient(padded: Tensor, gradient: Tensor) -> Tensor:
    """Twin of `segcal.functional.tree_training.weight_gradient`, in float32."""
    if padded.dtype != torch.float32 or gradient.dtype != torch.float32 or not gradient.numel():
        return DECLINED
    return torch.from_numpy(filter_gradient(as_numpy(padded), as_numpy(gradient)))


def _ready(found: Tensor, leaf: Tensor | None) -> bool:
    single = found.dtype == torch.float32 and (leaf is None or leaf.dtype == torch.float32)
    return single and found.numel() > 0 and found.shape[1] == (7 if leaf is None else 8)


def _pixels(found: Tensor) -> Array:
    """Return the nodes of one image as `[N, K]`, without a copy if they lie so."""
    return as_numpy(found.movedim(0, -1).flatten(0, -2))


def _leaf(leaf: Tensor | None, k: int) -> Array:
    return np.empty(0, np.float32) if leaf is None else as_numpy(leaf[k]).reshape(-1)
