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
from segcal.functional.pixels import all_finite, relabel
from segcal.kernels.constants import SMALLEST_LOG_PROBABILITY
from segcal.kernels.dispatch import has_values
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


def check_logits(logits: Tensor, num_classes: int, *, class_axis: int, start: int = 0, of: str = "") -> Tensor:
    """Return logits that are all finite; raise unless they are floating point and have `num_classes` entries.

    Minus infinity marks a class that is impossible at a pixel. It is replaced by a logit 87.3 nats below the largest,
    which has the probability of the smallest float32: the same as a probability of 0 that is converted to a logit. NaN
    and plus infinity are refused, and so are pixels at which every class is impossible.

    Args:
        logits: Scores.
        num_classes: L.
        class_axis: Axis of the classes.
        start: Position of the logits along the first spatial axis of their case, for messages.
        of: Name of the case, for messages.

    >>> check_logits(torch.tensor([[2.0, -torch.inf]]), 2, class_axis=1)
    tensor([[  2.0000, -85.3365]])
    """
    check_score_shape(logits, num_classes, class_axis=class_axis, of=of)
    if not has_values(logits) or all_finite(logits):
        return logits
    return _possible(logits, class_axis, start, of)


def check_score_shape(logits: Tensor, num_classes: int, *, class_axis: int, of: str = "") -> None:
    """Raise unless `logits` are floating point and have `num_classes` entries along `class_axis`."""
    if not torch.is_floating_point(logits):
        raise InputError(f"logits must be floating point, got {logits.dtype}{_of(of)}; convert them first")
    if logits.ndim <= class_axis or logits.shape[class_axis] != num_classes:
        raise InputError(
            f"logits must have num_classes={num_classes} entries along axis {class_axis}, "
            f"got shape {tuple(logits.shape)}{_of(of)}; set num_classes or fix the logits"
        )


def _possible(logits: Tensor, class_axis: int, start: int, of: str) -> Tensor:
    """Return logits with a finite number instead of minus infinity; raise if they are NaN or plus infinity."""
    wrong = logits.isnan() | (logits == torch.inf)
    if wrong.any():
        at = wrong.nonzero()[0].tolist()
        place = _place(at, class_axis + 1, start)
        raise InputError(_not_finite(f"{logits[tuple(at)].item()} at {place}{_of(of)}"))
    top = logits.amax(dim=class_axis, keepdim=True)
    hopeless = torch.isneginf(top).squeeze(class_axis)
    if hopeless.any():
        raise InputError(
            "at least one class must be possible at each pixel, got -inf for all of them "
            f"at {_place(hopeless.nonzero()[0].tolist(), class_axis, start)}{_of(of)}; correct the scores"
        )
    return possible_logits(logits, top)


def possible_logits(logits: Tensor, top: Tensor) -> Tensor:
    """Return logits with a finite number instead of minus infinity; `top` holds the largest of each pixel.

    It is 87.3 nats below the largest: that of the probability that `logits_from_probabilities` gives to 0.
    """
    limits = torch.finfo(logits.dtype)
    # where logits are so large that 87.3 is lost in rounding, a few units in the last place instead
    below = (4 * limits.eps * top.abs()).clamp(min=-SMALLEST_LOG_PROBABILITY)
    return torch.where(torch.isneginf(logits), (top - below).clamp(min=limits.min), logits)


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


def _place(at: list[int], axis: int, start: int) -> tuple[int, ...]:
    """Return a position, moved by `start` along one axis."""
    return tuple(i + start if k == axis else i for k, i in enumerate(at))


def _not_a_class(got: str, num_classes: int, ignore_index: IgnoreIndex) -> str:
    allowed = f"0..{num_classes - 1}{_or_ignored(ignore_index)}"
    return f"labels must be in {allowed}, got {got}; set ignore_index or num_classes"


def _position(problem: int) -> str:
    number, position = place_of_problem(problem)
    return f"one that is not, at position {position} of the labels laid flat in update {number}"


def _not_finite(got: str) -> str:
    return (
        f"logits must be finite, or -inf for an impossible class, got {got}; "
        "save the scores before they overflow, or declare probabilities as probabilities"
    )


def _of(name: str) -> str:
    return f" of {name}" if name else ""


def _or_ignored(ignore_index: IgnoreIndex) -> str:
    ignored = ignored_labels(ignore_index)
    if not ignored:
        return ""
    return f" or ignore_index={ignored[0] if len(ignored) == 1 else ignored}"
