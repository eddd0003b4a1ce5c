"""Checks of tensors that come from outside; messages say what was required, what was received and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, SupportsIndex, get_args

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from segcal.functional.counting import place_of_problem
from segcal.functional.fingerprint import holds_numbers, sampled_scores
from segcal.functional.pixels import all_finite, relabel
from segcal.functional.probability import possible_logits
from segcal.kernels.dispatch import has_values
from segcal.types import Activation, IgnoreIndex, InputError

IGNORED = -1
"""The label of every ignored pixel after the check, whatever it was before."""

PROBABILITIES = (
    "the logits look like probabilities: they are in 0..1 and sum to 1 over the classes; give logits, or convert "
    "probabilities with segcal.functional.probability.logits_from_probabilities (folders: scores = 'probabilities')"
)
SIGMOID_PROBABILITIES = (
    "the logits of a sigmoid channel look like probabilities: all are in 0..1; give logits, or convert probabilities "
    "with segcal.functional.probability.logits_from_sigmoid (folders: scores = 'probabilities')"
)
_FINITE = (
    "logits must be finite, or -inf for an impossible class",
    "save the scores before they overflow, or declare probabilities as probabilities",
)
_OUTSIDE, _SUM_OFF, _NEARLY_EVERY = 1e-3, 1e-2, 0.9
_NEAR_ZERO = 0.05  # probabilities of a channel are nearly 0 somewhere; few logits are all positive and nearly 0
_FEWEST_PIXELS = 16  # below, numbers that sum to 1 may be a coincidence
_SHARES_OFF = 1e-3


def ignored_labels(ignore_index: IgnoreIndex) -> tuple[int, ...]:
    """Return `ignore_index`, which is one int, several or None, as a tuple; raise if one needs more than 64 bits."""
    if ignore_index is None:
        return ()
    given = (ignore_index,) if isinstance(ignore_index, SupportsIndex) else ignore_index
    ignored = tuple(index(label) for label in given)
    if beyond := [label for label in ignored if not -(2**63) <= label < 2**63]:
        raise InputError(f"labels to ignore must be whole numbers of 64 bits, got {beyond[0]}; correct ignore_index")
    return ignored


def activation_of(activation: str | None, num_classes: int) -> Activation:
    """Return the activation given, or by default the softmax; one channel alone can only have a sigmoid.

    Examples:
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


def check_logits(
    logits: Tensor,
    num_classes: int,
    *,
    class_axis: int,
    activation: Activation = "softmax",
    start: int = 0,
    of: str = "",
) -> Tensor:
    """Return logits that are all finite; raise unless they are floating point and have `num_classes` entries.

    Minus infinity marks a class that is impossible at a pixel. It is replaced by a logit 87.3 nats below the largest,
    which has the probability of the smallest float32: the same as a probability of 0 that is converted to a logit. NaN
    and plus infinity are refused, and so are pixels at which every class is impossible. A sigmoid channel competes with
    the logit 0 of its absence, so that every channel may be impossible. A graph that is compiled or exported cannot
    refuse anything, but replaces minus infinity as well.

    Args:
        logits: Scores.
        num_classes: L.
        class_axis: Axis of the classes.
        activation: What turns the logits into probabilities.
        start: Position of the logits along the first spatial axis of their case, for messages.
        of: Name of the case, for messages.

    Examples:
        >>> check_logits(torch.tensor([[2.0, -torch.inf]]), 2, class_axis=1)
        tensor([[  2.0000, -85.3365]])
        >>> check_logits(torch.tensor([[2.0, -torch.inf]]), 2, class_axis=1, activation="sigmoid")
        tensor([[  2.0000, -87.3365]])
    """
    check_score_shape(logits, num_classes, class_axis=class_axis, of=of)
    if torch.compiler.is_compiling():
        return possible_logits(logits, _largest_rival(logits, class_axis, activation))
    if not has_values(logits) or all_finite(logits):
        return logits
    return _possible(logits, class_axis, activation, start, of)


def check_passes(passes: Tensor | None, logits: Tensor) -> Tensor | None:
    """Return passes that are all finite, as `check_logits` does; raise unless they are `[B, K, L, *S]`."""
    if passes is None:
        return None
    if passes.ndim != logits.ndim + 1 or (passes.shape[0], *passes.shape[2:]) != tuple(logits.shape):
        expected = ", ".join(map(str, (len(logits), "K", *logits.shape[1:])))
        raise InputError(
            f"passes must have shape ({expected}), got {tuple(passes.shape)}; stack their logits along axis 1"
        )
    return check_logits(passes, logits.shape[1], class_axis=2)


def check_score_shape(logits: Tensor, num_classes: int, *, class_axis: int, of: str = "") -> None:
    """Raise unless `logits` are floating point and have `num_classes` entries along `class_axis`."""
    check_floating(logits, of=of)
    if logits.ndim <= class_axis or logits.shape[class_axis] != num_classes:
        raise InputError(
            f"logits must have num_classes={num_classes} entries along axis {class_axis}, "
            f"got shape {tuple(logits.shape)}{_of(of)}; {class_axis_remedy(logits.shape, num_classes, class_axis)}"
        )


def check_floating(logits: Tensor, *, of: str = "") -> None:
    """Raise unless `logits` are floating point."""
    if not torch.is_floating_point(logits):
        raise InputError(
            f"logits must be floating point, got {logits.dtype}{_of(of)}; convert them first or, if they are predicted "
            "labels, save the scores that the labels are the argmax of"
        )


def _possible(logits: Tensor, class_axis: int, activation: Activation, start: int, of: str) -> Tensor:
    """Return logits with a finite number instead of minus infinity; raise if they are NaN or plus infinity."""
    origin, top = (*[0] * class_axis, start), _largest_rival(logits, class_axis, activation)
    _refuse(logits.isnan() | (logits == torch.inf), logits, *_FINITE, (0, *origin), of)
    best = top.squeeze(class_axis)
    required = "at least one class must be possible at each pixel"
    _refuse(torch.isneginf(best), best, required, "correct the scores", origin, of)
    return possible_logits(logits, top)


def _largest_rival(logits: Tensor, class_axis: int, activation: Activation) -> Tensor:
    """Return the largest logit of each pixel, or the logit 0 of the absence of a sigmoid channel."""
    return torch.zeros_like(logits) if activation == "sigmoid" else logits.amax(dim=class_axis, keepdim=True)


def check_probabilities(probs: Tensor, *, exclusive: bool, origin: tuple[int, ...] = (), of: str) -> None:
    """Raise unless `probs` `[L, *S]` are finite, in 0..1 and, if exclusive, sum to 1 to half precision.

    Args:
        probs: Probabilities, perhaps a part of those of a case.
        exclusive: Whether classes exclude each other; those of sigmoid channels do not.
        origin: Position of the part in its case, for messages.
        of: Name of the case, for messages.
    """
    remedy = 'if these are logits, set scores = "logits"'
    # written so that NaN is wrong as well
    inside = (probs >= -1e-3) & (probs <= 1 + 1e-3)
    _refuse(~inside, probs, "probabilities must be in 0..1", remedy, (0, *origin), of)
    if exclusive:
        total = probs.sum(dim=0, dtype=torch.float64)
        remedy += (
            ', if channels overlap, activation = "sigmoid" (--activation sigmoid); '
            "segcal.functional.probability.logits_from_scores converts other scores"
        )
        one = (total - 1).abs() <= 1e-2
        _refuse(~one, total, "probabilities must sum to 1 over the classes", remedy, origin, of)


def _refuse(wrong: Tensor, values: Tensor, required: str, remedy: str, origin: tuple[int, ...], of: str) -> None:
    """Raise if a value is wrong, and name the first with its position in the case, of which these are a part."""
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        place = tuple(i + o for i, o in zip(at, (*origin, *[0] * len(at)), strict=False))
        raise InputError(f"{required}, got {values[at].item():.6g} at {place}{_of(of)}; {remedy}")


def check_labels(
    labels: Tensor, num_classes: int, ignore_index: IgnoreIndex = None, *, of: str = ""
) -> Int64[Tensor, "..."]:
    """Return labels as int64 with every ignored pixel set to -1; raise if a label is neither a class nor ignored.

    Examples:
        >>> check_labels(torch.tensor([0, 2, 255], dtype=torch.uint8), num_classes=3, ignore_index=255)
        tensor([ 0,  2, -1])
    """
    check_integers(labels, of=of)
    result, wrong = relabel(labels, ignored_labels(ignore_index), num_classes)
    if wrong >= 0:
        at = tuple(int(position) for position in np.unravel_index(wrong, labels.shape))
        value = int(labels[at].item())
        raise InputError(_not_a_class(f"{value} at {at}{_of(of)}", num_classes, ignore_index, value))
    return result


def check_integers(labels: Tensor, *, of: str = "") -> None:
    """Raise unless `labels` are integers."""
    if torch.is_floating_point(labels) or labels.is_complex():
        raise InputError(
            f"labels must be integers, got {labels.dtype}{_of(of)}; convert them first or, if they are shares of "
            "several raters, make label maps of them with segcal.rater_cases"
        )


def check_batches(problems: Sequence[int], num_classes: int, ignore_index: IgnoreIndex) -> None:
    """Raise if one of the batches that `add_unchecked_batch` counted had an invalid label or score."""
    label, score = problems
    if label:
        raise InputError(_not_a_class(_position(label), num_classes, ignore_index))
    if score:
        required, remedy = _FINITE
        raise InputError(f"{required}, got {_position(score)}; {remedy}")


def check_shares(shares: Float64[Tensor, "L N"], num_classes: int) -> None:
    """Raise unless soft labels are shares of raters: in 0..1, and with a sum of 1 over the classes."""
    total = shares.sum(dim=0) if num_classes > 1 else torch.ones_like(shares[0])
    wrong = ~((shares >= 0) & (shares <= 1)).all(dim=0) | ~((total - 1).abs() <= _SHARES_OFF)
    if wrong.any():
        at = int(wrong.nonzero()[0])
        values = ", ".join(f"{value:.4g}" for value in shares[:, at].tolist())
        raise InputError(
            f"soft labels must be shares in 0..1 that sum to 1 over the classes, got ({values}) at a pixel; "
            "divide the votes of each pixel by their sum, and leave pixels without votes out with a mask"
        )


def check_same_space(logits: Tensor, other: Tensor, *, class_axis: int, what: str = "labels", of: str = "") -> None:
    """Raise unless `other`, which has no class axis, covers the same batch and space as `logits`."""
    expected = (*logits.shape[:class_axis], *logits.shape[class_axis + 1 :])
    if tuple(other.shape) != expected:
        remedy = _space_remedy(tuple(logits.shape), tuple(other.shape), class_axis, what)
        raise InputError(
            f"{what} must have shape {expected} to match logits of shape {tuple(logits.shape)}, "
            f"got {tuple(other.shape)}{_of(of)}; {remedy}"
        )


def _not_a_class(got: str, num_classes: int, ignore_index: IgnoreIndex, value: int | None = None) -> str:
    allowed = f"0..{num_classes - 1}{_or_ignored(ignore_index)}"
    return f"labels must be in {allowed}, got {got}; {_label_remedy(value, num_classes)}"


def _position(problem: int) -> str:
    number, position = place_of_problem(problem)
    return f"one that is not, at position {position} of the labels laid flat in update {number}"


def probability_doubt(logits: Any) -> str | None:
    """Return a warning if logits `[L, *S]` look like probabilities; they are never converted.

    They do if all are in 0..1 and sum to 1 over the classes at nearly every pixel, as far as half precision can tell,
    and are not the same at every pixel. For a sigmoid channel, alone or as the two classes `[0, z]`, it is enough that
    all are in 0..1 and some near 0: such logits would predict the channel everywhere.

    Examples:
        >>> probability_doubt(torch.randn(3, 64, 64)) is None
        True
        >>> probability_doubt(torch.randn(3, 64, 64).softmax(dim=0))[:45]
        'the logits look like probabilities: they are '
        >>> probability_doubt((4 * torch.randn(1, 64, 64)).sigmoid())[:45]
        'the logits of a sigmoid channel look like pro'
    """
    if not holds_numbers(logits):
        return None
    scores = sampled_scores(logits)
    inside = scores.min() >= -_OUTSIDE and scores.max() <= 1 + _OUTSIDE  # NaN is not
    if scores.shape[1] < _FEWEST_PIXELS or not inside or not (scores != scores[:, :1]).any():
        return None
    if len(scores) == 1 or (len(scores) == 2 and not scores[0].any()):
        return SIGMOID_PROBABILITIES if scores[-1].min() < _NEAR_ZERO else None
    sums_to_one = np.abs(scores.sum(axis=0) - 1) <= _SUM_OFF
    return PROBABILITIES if sums_to_one.mean() >= _NEARLY_EVERY else None


def class_axis_remedy(shape: Sequence[int], num_classes: int, class_axis: int) -> str:
    """Return what to do about logits that do not have `num_classes` entries along their class axis."""
    spatial = len(shape) - class_axis - 1
    if spatial > 0 and shape[-1] == num_classes:
        return f"the classes are on the last axis: give np.moveaxis(logits, -1, {class_axis})"
    if class_axis == 0 and spatial > 1 and tuple(shape[:2]) == (1, num_classes):
        return "a case has no batch axis: give logits[0]"
    if class_axis == 1 and spatial > 0 and shape[0] == num_classes:
        return "add a batch axis: give logits[None] and labels[None]"
    if len(shape) > class_axis and shape[class_axis] == 1:
        return "set num_classes=1 and activation='sigmoid' (--activation sigmoid)"
    return "set num_classes or fix the logits"


def _space_remedy(logits: tuple[int, ...], other: tuple[int, ...], class_axis: int, what: str) -> str:
    """Return what to do about labels or masks of another shape, by the usual reasons for it."""
    expected = (*logits[:class_axis], *logits[class_axis + 1 :])
    batched = class_axis == 0 and logits[:1] == (1,)
    one = (*expected[:class_axis], 1, *expected[class_axis:])
    first = ", ".join([":"] * class_axis + ["0"])
    reasons = (
        (other == logits[:-1], f"the classes are last in the logits: give np.moveaxis(logits, -1, {class_axis})"),
        (
            other == logits,
            f"if the {what} are one-hot, give {what}.argmax({class_axis}), or activation='sigmoid' if they "
            "overlap (--activation sigmoid); shares of several raters become label maps with segcal.rater_cases",
        ),
        (batched and other == logits[2:], "a case has no batch axis: give logits[0]"),
        (batched and other == (1, *logits[2:]), f"a case has no batch axis: give logits[0] and {what}[0]"),
        (class_axis == 1 and other == logits[1:], f"add a batch axis: give logits[None] and {what}[None]"),
        (other == one, f"the {what} have an axis of one: give {what}[{first}]"),
        (sorted(other) == sorted(expected), f"the axes are in another order: transpose the logits or the {what}"),
    )
    return next((remedy for applies, remedy in reasons if applies), "resample one to the other")


def _of(name: str) -> str:
    return f" of {name}" if name else ""


def _label_remedy(value: int | None, num_classes: int) -> str:
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
