"""Weighted voting over warped atlas labels (appendix, "Multi-atlas Segmentation and Joint Label Fusion").

`S(x) = argmax_l sum_i w_i(x) [A_i(x) = l]`: equal weights give plurality voting, the probability that each atlas is
right gives spatially varying weighted voting (SVWV), and `joint_label_fusion_weights` gives joint label fusion.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Integer
from torch import Tensor

from segcal.functional.arrays import to_array
from segcal.fusion.registration import simple_itk
from segcal.types import Array, InputError

Values: TypeAlias = np.ndarray | Tensor
AtlasLabels: TypeAlias = Integer[Values, "N *S"]
Weights: TypeAlias = Float[Values, "N *S"]
Segmentation: TypeAlias = Integer[Values, "*S"]


class Fused(NamedTuple):
    """A fused segmentation.

    Attributes:
        labels: The label with the largest weight; of equal ones the smallest.
        probability: Its share of the weight.
        agreement: Share of the atlases that propose it.
    """

    labels: Integer[np.ndarray, "*S"]
    probability: Float[np.ndarray, "*S"]
    agreement: Float[np.ndarray, "*S"]


def weighted_vote(labels: AtlasLabels, weights: Weights) -> Fused:
    """Return the label of the largest summed weight at every voxel.

    Weights need not sum to 1; negative ones count against their label.

    Examples:
        >>> labels = np.array([[1, 2], [1, 0], [2, 0]])
        >>> weighted_vote(labels, np.array([[0.2, 0.9], [0.2, 0.3], [0.6, 0.3]])).labels
        array([2, 2])
    """
    labels, weights = to_array(labels), to_array(weights)
    _check(labels, weights)
    total = weights.sum(axis=0)
    best = np.full(labels.shape[1:], -np.inf)
    chosen = np.zeros(labels.shape[1:], labels.dtype)
    for label in np.unique(labels):
        votes = np.where(labels == label, weights, 0).sum(axis=0)
        proposed = (labels == label).any(axis=0)  # a label nobody proposes must not win against negative votes
        better = proposed & (votes > best)
        best, chosen = np.where(better, votes, best), np.where(better, label, chosen)
    share = np.divide(best, total, out=np.full(best.shape, np.nan), where=total != 0)
    return Fused(chosen, np.clip(share, 0, 1), (labels == chosen).mean(axis=0))


def plurality_vote(labels: AtlasLabels) -> Fused:
    """Return the label that most atlases propose; of equally frequent ones the smallest."""
    labels = to_array(labels)
    return weighted_vote(labels, np.broadcast_to(np.float64(1), labels.shape))


def majority_vote(labels: AtlasLabels) -> Fused:
    """Return the label that more than half of the atlases propose, and 0 where there is none.

    Examples:
        >>> majority_vote(np.array([[1, 1], [1, 2], [2, 3]])).labels
        array([1, 0])
    """
    labels = to_array(labels)
    fused = plurality_vote(labels)
    chosen = np.where(2 * fused.agreement > 1, fused.labels, 0).astype(labels.dtype)
    agreement = (labels == chosen).mean(axis=0)
    return Fused(chosen, agreement, agreement)


def staple(labels: AtlasLabels) -> Integer[np.ndarray, "*S"]:
    """Return the consensus by STAPLE (Warfield et al. 2004), which knows neither images nor probabilities.

    Voxels that SimpleITK leaves undecided get label 0.
    """
    sitk, labels = simple_itk(), to_array(labels)
    top = int(labels.max(initial=0))
    if labels.min(initial=0) < 0 or top > 254:
        raise InputError(f"STAPLE needs labels from 0 to 254, got {labels.min()} to {top}")
    filter_ = sitk.MultiLabelSTAPLEImageFilter()
    undecided = top + 1
    filter_.SetLabelForUndecidedPixels(undecided)
    # the filter counts labels in the type of its images, and in 8 bits never gets past label 255
    images = [sitk.GetImageFromArray(one.astype(np.uint16)) for one in labels]
    found = sitk.GetArrayFromImage(filter_.Execute(images))
    return np.where(found == undecided, 0, found).astype(labels.dtype)


def _check(labels: Array, weights: Array) -> None:
    if labels.ndim < 2 or labels.shape[0] < 1:
        raise InputError(f"atlas labels must have shape (N, *S) with N of at least 1, got {labels.shape}")
    if weights.shape != labels.shape:
        raise InputError(f"weights must have the shape of the atlas labels, {labels.shape}, got {weights.shape}")
    if not np.isfinite(weights).all():  # no label has a larger vote than NaN, and one that nobody proposes would remain
        raise InputError("weights must be finite, got NaN or infinity; correct the probabilities they are made from")
