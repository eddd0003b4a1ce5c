"""What every case of a folder must agree with, and the checks of its arrays."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from segcal.data.folders.settings import Scores
from segcal.data.io.base import Spacing
from segcal.files import release_pages
from segcal.functional.arrays import shared_tensor
from segcal.functional.checks import (
    check_labels,
    check_logits,
    check_probabilities,
    check_same_space,
    check_score_shape,
    probability_doubt,
)
from segcal.text import CalibrationWarning
from segcal.types import Activation, Array, InputError

_AT_ONCE = 1 << 24
"""Scores checked at a time: copies of a whole volume, of whatever precision, would not fit into memory."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Number of classes or sigmoid channels, ignored labels, dimensions and image channels of a folder."""

    num_classes: int
    ignore_index: tuple[int, ...] | None
    spatial_dims: int
    image_channels: int
    activation: Activation = "softmax"

    def check(
        self,
        name: str,
        kind: Scores,
        scores: Array,
        labels: Array | None,
        image: Array | None,
        spacing: Spacing | None,
        *,
        in_slabs: bool = False,
    ) -> None:
        """Raise, naming the case, unless shapes agree, scores are finite and labels in range.

        With `in_slabs`, whether logits are finite is left to those who read them slab by slab (`cases.slabs_of`).
        """
        of, values = f"case '{name}'", shared_tensor(scores)
        exclusive = self.activation == "softmax"
        if kind == "probabilities":
            _check_probabilities(scores, of=of, exclusive=exclusive)
        if in_slabs and kind == "logits" and exclusive:
            check_score_shape(values, self.num_classes, class_axis=0, of=of)
        else:
            self._check_logits(scores, of)
        if kind == "logits" and exclusive and (doubt := probability_doubt(scores)):
            warnings.warn(doubt, CalibrationWarning, stacklevel=2)
        if labels is not None:
            self._check_shape(shared_tensor(labels), values, of)
        self._check_dims(scores, labels, spacing, of)
        if labels is not None:
            classes = self.num_classes if self.activation == "softmax" else 2
            check_labels(shared_tensor(labels), classes, self.ignore_index, of=of)
        if image is not None:
            self._check_image(shared_tensor(image), values, of)

    def _check_shape(self, labels: Tensor, scores: Tensor, of: str) -> None:
        """Raise unless labels cover the scores: `[*S]`, or a mask for each sigmoid channel."""
        if self.activation == "softmax" or (self.num_classes == 1 and labels.ndim < scores.ndim):
            check_same_space(scores, labels, class_axis=0, of=of)
        elif labels.shape != scores.shape:
            raise InputError(
                f"labels of sigmoid channels must have shape {tuple(scores.shape)}, a mask of 0 and 1 for each, "
                f"got {tuple(labels.shape)} of {of}; list the labels of each channel under [channels] in segcal.toml, "
                "or store the masks as .npy or .npz"
            )

    def _check_logits(self, scores: Array, of: str) -> None:
        if scores.ndim < 2 or scores.size <= _AT_ONCE:
            check_logits(shared_tensor(scores), self.num_classes, class_axis=0, activation=self.activation, of=of)
            return
        for start, part in _slabs(scores):
            check_logits(part, self.num_classes, class_axis=0, activation=self.activation, start=start, of=of)

    def _check_dims(self, scores: Array, labels: Array | None, spacing: Spacing | None, of: str) -> None:
        if scores.ndim != self.spatial_dims + 1:
            got = f"scores of shape {scores.shape}" if labels is None else f"labels of shape {labels.shape}"
            raise InputError(
                f"all cases must have {self.spatial_dims} spatial axes as the first one, got {got} of {of}; "
                "keep pictures and volumes in folders of their own"
            )
        if spacing is not None and len(spacing) != self.spatial_dims:
            raise InputError(
                f"spacing must have {self.spatial_dims} lengths, one for each spatial axis, got {spacing} of {of}; "
                "correct it"
            )

    def _check_image(self, image: Tensor, logits: Tensor, of: str) -> None:
        if image.ndim != logits.ndim or image.shape[0] != self.image_channels:
            raise InputError(
                f"images must have {self.image_channels} channels as in the first case, as [C, *S] or [*S], "
                f"got shape {tuple(image.shape)} of {of}; convert it"
            )
        check_same_space(logits, image[0], class_axis=0, what="each channel of the image", of=of)
        if not torch.isfinite(image.sum(dtype=torch.float64)):
            raise InputError(f"images must be finite, got NaN or infinity in that of {of}; fill in such pixels")


def _check_probabilities(probs: Array, *, of: str, exclusive: bool) -> None:
    """Raise unless an array `[L, *S]`, which may be on disk, holds probabilities."""
    if probs.dtype.kind != "f":
        raise InputError(f"probabilities must be floating point, got {probs.dtype} of {of}; convert them first")
    if probs.ndim < 2:
        return  # the shape is checked next
    for start, part in _slabs(probs):
        check_probabilities(part, exclusive=exclusive, start=start, of=of)


def _slabs(scores: Array) -> Iterator[tuple[int, Tensor]]:
    """Yield parts of bounded size along the first spatial axis, each with its place; those on disk are released."""
    step = max(1, _AT_ONCE * scores.shape[1] // max(1, scores.size))
    for start in range(0, scores.shape[1], step):
        yield start, shared_tensor(scores[:, start : start + step])
        release_pages(scores)
