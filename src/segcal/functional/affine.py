"""Affine maps of scores (vector, matrix and Dirichlet calibration): the map, and its negative log-likelihood."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from segcal.functional.draws import Sample
from segcal.functional.minimise import Block
from segcal.functional.probability import at_least_float32
from segcal.kernels.constants import SMALLEST_LOG_PROBABILITY
from segcal.kernels.dispatch import accelerated
from segcal.types import Array

_WHOLE = 1200  # variables up to which the whole curvature is computed; beyond, that of each class
_WORK = 3e8  # multiplications, beyond which the curvature is computed on fewer pixels
_ROOM = 1 << 18  # numbers held at a time, so that they stay in the cache


def features(logits: Float[Tensor, "..."], *, of_log: bool, dim: int) -> Float[Tensor, "..."]:
    """Return what the map is applied to: the logits, or their log-probabilities."""
    return torch.log_softmax(logits, dim=dim).clamp(min=SMALLEST_LOG_PROBABILITY) if of_log else logits


@accelerated
def affine_sums(
    logits: Float[Tensor, "L N"],
    labels: Int64[Tensor, " N"],
    importance: Float64[Tensor, " N"],
    weights: Float64[Tensor, "J K"],
    bias: Float64[Tensor, " J"],
    *,
    of_log: bool,
) -> Float64[Tensor, " P"]:
    """Return the summed NLL of pixels under an affine map, and its gradient in weights and bias, in one row.

    Pixels with a negative label are skipped; the others count `importance` times. The weights are `[J, L]`, or `[L, 1]`
    for one scale per class. The map is applied to the logits, or to their log-probabilities (`of_log`).
    """
    importance, weights, bias = (values.to(logits.device) for values in (importance, weights, bias))
    index = (labels >= 0).nonzero().squeeze(1)
    truth = labels[index].unsqueeze(0)
    x = features(logits[:, index].double(), of_log=of_log, dim=0)
    diagonal = weights.shape[1] == 1 and len(x) == len(weights)
    log_probs = torch.log_softmax((weights * x if diagonal else weights @ x) + bias.unsqueeze(1), dim=0)
    share = importance[index].unsqueeze(0)
    loss = -(share * log_probs.gather(0, truth)).sum()
    residual = (share * log_probs.exp()).scatter_add(0, truth, -share)
    slope = (residual * x).sum(dim=1) if diagonal else residual @ x.T
    return torch.cat([loss.reshape(1), slope.reshape(-1), residual.sum(dim=1)]).cpu()


def affine_map(
    logits: Float[Tensor, "B L *S"], weights: Float64[Tensor, "L K"], bias: Float64[Tensor, " L"], *, of_log: bool
) -> Float[Tensor, "B L *S"]:
    """Return `weights x + bias` at each pixel, with x the logits or their log-probabilities."""
    wide = at_least_float32(logits)
    # a sum of products of scores near the largest number could be infinity minus infinity
    largest = torch.finfo(wide.dtype).max / (4 * (weights.abs().sum(dim=1).max() + 1))
    x = features((wide - wide.amax(dim=1, keepdim=True)) if of_log else wide, of_log=of_log, dim=1)
    x = torch.minimum(torch.maximum(x, -largest.to(wide.dtype)), largest.to(wide.dtype))
    scale, shift = weights.to(wide.dtype), bias.to(wide.dtype)
    flat = x.flatten(2) if x.ndim > 2 else x.unsqueeze(2)
    mapped = scale * flat + shift.unsqueeze(1) if scale.shape[1] == 1 else mapped_scores(flat, scale, shift)
    return mapped.view(logits.shape)


@accelerated
def mapped_scores(
    x: Float[Tensor, "*B K N"], weights: Float[Tensor, "J K"], bias: Float[Tensor, " J"]
) -> Float[Tensor, "*B J N"]:
    """Return `weights x + bias` at each pixel, in the precision of x.

    The kernel for the CPU adds the products of every pixel in one fixed order. The order of a BLAS library may depend
    on the number of threads and on the memory that it finds.
    """
    return weights @ x + bias.unsqueeze(1)


def affine_curvature(
    sample: Sample, weights: Float64[Tensor, "L K"], bias: Float64[Tensor, " L"], penalty: Array, *, of_log: bool
) -> list[Block]:
    """Return second derivatives of the mean NLL of a sample plus `penalty` times squares, whole or class by class.

    Variables are ordered as in `affine_sums`. With the features `f` (a scale's own score and 1, or all scores and 1),
    the block of classes c and d is the mean of `(p_c [c = d] - p_c p_d) f f'`.
    """
    classes, width = weights.shape
    size = classes * (width + 1)
    whole = size <= _WHOLE
    pixels = int(min(sample.labels.numel(), max(2 * size, _WORK / size**2 if whole else _WORK / (size * width))))
    chosen = torch.linspace(0, sample.labels.numel() - 1, pixels).long()
    own, cross = np.zeros((classes, width + 1, width + 1)), np.zeros((size, size) if whole else 0)
    for index in torch.split(chosen, max(1, _ROOM // size)):
        x = features(sample.logits[:, index], of_log=of_log, dim=0)
        probs = torch.softmax((weights * x if width == 1 else weights @ x) + bias.unsqueeze(1), dim=0).T.numpy()
        share = sample.importance[sample.labels[index]].numpy()
        extended = _features_of_classes(x.T.numpy(), width)
        scaled = probs[:, :, np.newaxis] * extended
        weighted = share[:, np.newaxis, np.newaxis] * scaled
        if whole:
            cross += weighted.reshape(len(index), size).T @ scaled.reshape(len(index), size)
        else:
            weighted *= 1 - probs[:, :, np.newaxis]
        own += np.einsum("nca,ncb->cab", weighted, np.broadcast_to(extended, scaled.shape), optimize=True)
    total = float(sample.importance[sample.labels[chosen]].sum())
    place = np.concatenate(  # positions of the weights and the bias of each class among all variables
        [np.arange(classes * width).reshape(classes, width), classes * width + np.arange(classes)[:, np.newaxis]],
        axis=1,
    )
    blocks = [Block(place[c], own[c] / total + np.diag(2 * penalty[place[c]])) for c in range(classes)]
    if not whole:
        return blocks
    curvature = -cross / total
    for c, block in enumerate(blocks):
        at = slice(c * (width + 1), (c + 1) * (width + 1))
        curvature[at, at] += block.curvature
    return [Block(place.reshape(-1), curvature)]


def _features_of_classes(x: Array, width: int) -> Array:
    """Return the features of each class and pixel: `[N, L, 2]`, or `[N, 1, L + 1]` if all classes share them."""
    each = x[:, :, np.newaxis] if width == 1 else x[:, np.newaxis, :]
    return np.concatenate([each, np.ones_like(each[:, :, :1])], axis=2)
