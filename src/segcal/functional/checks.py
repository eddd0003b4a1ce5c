"""Checks of tensors that come from outside; messages say what was required, what was received and what to do."""

from __future__ import annotations

from operator import index
from typing import SupportsIndex, get_args

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from segcal.functional.pixels import relabel, sum_is_finite
from segcal.types import Activation, IgnoreIndex, InputError

IGNORED = -1
"""The label of every ignored pixel after the check, whatever it was before."""


def ignored_labels(ignore_index: IgnoreIndex) -> tuple[int, ...]:
    """Return `ignore_index`, which is one int, several or None, as a tuple."""
    if ignore_index is None:
        return ()
    if isinstance(ignore_index, SupportsIndex):
        return (index(ignore_index),)
    return tuple(index(label) for label in ignore_index)


def activation_of(activation: str | None, num_classes: int) -> Activation:
    """Return the activation given, or by default the softmax; one channel alone can only have a sigmoid.

    >>> activation_of(None, 1), activation_of(None, 3), activation_of("sigmoid", 3)
    ('sigmoid', 'softmax', 'sigmoid')
    """
    if activation not in (None, *get_args(Activation)):
        raise InputError(f"activation must be softmax or sigmoid, got '{activation}'")
    if num_classes == 1 and activation == "softmax":
        raise InputError(
            "a softmax needs at least 2 classes, got num_classes=1; a single channel has activation='sigmoid'"
        )
    return "sigmoid" if num_classes == 1 or activation == "sigmoid" else "softmax"


def check_logits(logits: Tensor, num_classes: int, *, class_axis: int, of: str = "") -> None:
    """Raise unless `logits` are floating point, finite and have `num_classes` entries along `class_axis`."""
    if not torch.is_floating_point(logits):
        raise InputError(f"logits must be floating point, got {logits.dtype}{_of(of)}; convert them first")
    if logits.ndim <= class_axis or logits.shape[class_axis] != num_classes:
        single = logits.ndim > class_axis and logits.shape[class_axis] == 1
        remedy = "set num_classes=1 and activation='sigmoid'" if single else "set num_classes or fix the logits"
        raise InputError(
            f"logits must have num_classes={num_classes} entries along axis {class_axis}, "
            f"got shape {tuple(logits.shape)}{_of(of)}; {remedy}"
        )
    # a sum is finite only if every term is, and costs one read of the logits and no memory
    if not sum_is_finite(logits) and not torch.isfinite(logits).all():
        bad = (~torch.isfinite(logits)).nonzero()[0]
        value, at = logits[tuple(bad)].item(), tuple(bad.tolist())
        raise InputError(
            f"logits must be finite, got {value} at {at}{_of(of)}; "
            "save the scores before they overflow, or declare probabilities as probabilities"
        )


def check_labels(
    labels: Tensor, num_classes: int, ignore_index: IgnoreIndex = None, *, of: str = ""
) -> Int64[Tensor, "..."]:
    """Return labels as int64 with every ignored pixel set to -1; raise if a label is neither a class nor ignored.

    >>> check_labels(torch.tensor([0, 2, 255], dtype=torch.uint8), num_classes=3, ignore_index=255)
    tensor([ 0,  2, -1])
    """
    if torch.is_floating_point(labels) or labels.is_complex():
        raise InputError(f"labels must be integers, got {labels.dtype}{_of(of)}; convert them first")
    result, wrong = relabel(labels, ignored_labels(ignore_index), num_classes)
    if wrong >= 0:
        at = tuple(int(position) for position in np.unravel_index(wrong, labels.shape))
        value = int(labels[at].item())
        raise InputError(
            f"labels must be in 0..{num_classes - 1}{_or_ignored(ignore_index)}, "
            f"got {value} at {at}{_of(of)}; {_label_remedy(value, num_classes)}"
        )
    return result


def check_same_space(logits: Tensor, other: Tensor, *, class_axis: int, what: str = "labels", of: str = "") -> None:
    """Raise unless `other`, which has no class axis, covers the same batch and space as `logits`."""
    expected = (*logits.shape[:class_axis], *logits.shape[class_axis + 1 :])
    if tuple(other.shape) != expected:
        remedy = "resample one to the other"
        if what == "labels" and other.shape == logits.shape:
            remedy = "give one class per pixel (argmax of one-hot labels), or activation='sigmoid' if they overlap"
        raise InputError(
            f"{what} must have shape {expected} to match logits of shape {tuple(logits.shape)}, "
            f"got {tuple(other.shape)}{_of(of)}; {remedy}"
        )


def _of(name: str) -> str:
    return f" of {name}" if name else ""


def _label_remedy(value: int, num_classes: int) -> str:
    if value == 255 and num_classes == 2:
        return (
            "divide masks of 0 and 255 by 255 (in a folder, write [channels] and foreground = 255 in segcal.toml), "
            "or set ignore_index=255 if such pixels are not labelled"
        )
    return "set ignore_index or num_classes"


def _or_ignored(ignore_index: IgnoreIndex) -> str:
    ignored = ignored_labels(ignore_index)
    if not ignored:
        return ""
    return f" or ignore_index={ignored[0] if len(ignored) == 1 else ignored}"
