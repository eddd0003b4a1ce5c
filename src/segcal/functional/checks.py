"""Checks of tensors that come from outside; messages say what was required, what was received and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import SupportsIndex

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from segcal.functional.counting import place_of_problem
from segcal.functional.pixels import relabel, sum_is_finite
from segcal.types import IgnoreIndex, InputError

IGNORED = -1
"""The label of every ignored pixel after the check, whatever it was before."""


def ignored_labels(ignore_index: IgnoreIndex) -> tuple[int, ...]:
    """Return `ignore_index`, which is one int, several or None, as a tuple."""
    if ignore_index is None:
        return ()
    if isinstance(ignore_index, SupportsIndex):
        return (index(ignore_index),)
    return tuple(index(label) for label in ignore_index)


def check_logits(logits: Tensor, num_classes: int, *, class_axis: int, of: str = "") -> None:
    """Raise unless `logits` are floating point, finite and have `num_classes` entries along `class_axis`."""
    check_score_shape(logits, num_classes, class_axis=class_axis, of=of)
    # a sum is finite only if every term is, and costs one read of the logits and no memory
    if not sum_is_finite(logits) and not torch.isfinite(logits).all():
        bad = (~torch.isfinite(logits)).nonzero()[0]
        value, at = logits[tuple(bad)].item(), tuple(bad.tolist())
        raise InputError(_not_finite(f"{value} at {at}{_of(of)}"))


def check_score_shape(logits: Tensor, num_classes: int, *, class_axis: int, of: str = "") -> None:
    """Raise unless `logits` are floating point and have `num_classes` entries along `class_axis`."""
    if not torch.is_floating_point(logits):
        raise InputError(f"logits must be floating point, got {logits.dtype}{_of(of)}; convert them first")
    if logits.ndim <= class_axis or logits.shape[class_axis] != num_classes:
        raise InputError(
            f"logits must have num_classes={num_classes} entries along axis {class_axis}, "
            f"got shape {tuple(logits.shape)}{_of(of)}; set num_classes or fix the logits"
        )


def check_labels(
    labels: Tensor, num_classes: int, ignore_index: IgnoreIndex = None, *, of: str = ""
) -> Int64[Tensor, "..."]:
    """Return labels as int64 with every ignored pixel set to -1; raise if a label is neither a class nor ignored.

    >>> check_labels(torch.tensor([0, 2, 255], dtype=torch.uint8), num_classes=3, ignore_index=255)
    tensor([ 0,  2, -1])
    """
    check_integers(labels, of=of)
    result, wrong = relabel(labels, ignored_labels(ignore_index), num_classes)
    if wrong >= 0:
        at = tuple(int(position) for position in np.unravel_index(wrong, labels.shape))
        raise InputError(_not_a_class(f"{labels[at].item()} at {at}{_of(of)}", num_classes, ignore_index))
    return result


def check_integers(labels: Tensor, *, of: str = "") -> None:
    """Raise unless `labels` are integers."""
    if torch.is_floating_point(labels) or labels.is_complex():
        raise InputError(f"labels must be integers, got {labels.dtype}{_of(of)}; convert them first")


def check_batches(problems: Sequence[int], num_classes: int, ignore_index: IgnoreIndex) -> None:
    """Raise if one of the batches that `add_unchecked_batch` counted had an invalid label or score."""
    label, score = problems
    if label:
        raise InputError(_not_a_class(_position(label), num_classes, ignore_index))
    if score:
        raise InputError(_not_finite(_position(score)))


def check_same_space(logits: Tensor, other: Tensor, *, class_axis: int, what: str = "labels", of: str = "") -> None:
    """Raise unless `other`, which has no class axis, covers the same batch and space as `logits`."""
    expected = (*logits.shape[:class_axis], *logits.shape[class_axis + 1 :])
    if tuple(other.shape) != expected:
        raise InputError(
            f"{what} must have shape {expected} to match logits of shape {tuple(logits.shape)}, "
            f"got {tuple(other.shape)}{_of(of)}; resample one to the other"
        )


def _not_a_class(got: str, num_classes: int, ignore_index: IgnoreIndex) -> str:
    allowed = f"0..{num_classes - 1}{_or_ignored(ignore_index)}"
    return f"labels must be in {allowed}, got {got}; set ignore_index or num_classes"


def _position(problem: int) -> str:
    number, position = place_of_problem(problem)
    return f"one that is not, at position {position} of the labels laid flat in update {number}"


def _not_finite(got: str) -> str:
    return (
        f"logits must be finite, got {got}; "
        "save the scores before they overflow, or declare probabilities as probabilities"
    )


def _of(name: str) -> str:
    return f" of {name}" if name else ""


def _or_ignored(ignore_index: IgnoreIndex) -> str:
    ignored = ignored_labels(ignore_index)
    if not ignored:
        return ""
    return f" or ignore_index={ignored[0] if len(ignored) == 1 else ignored}"
