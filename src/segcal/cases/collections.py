"""Collections of cases as users give them: an iterator, pairs or a batch of arrays, part of a sequence, soft labels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from segcal.functional.arrays import check_numbers, to_tensor
from segcal.functional.checks import activation_of, check_same_space, class_axis_remedy
from segcal.functional.soft import rater_labels
from segcal.types import Activation, Array, Case, InputError, Lazy, public

Item = TypeVar("Item")
Pair: TypeAlias = tuple[Array | Tensor, Array | Tensor]
"""Logits `[L, *S]` and labels `[*S]` of one image or volume; labels `[L, *S]` for sigmoid channels."""


def as_collection(cases: Iterable[Item]) -> Collection[Item]:
    """Return the cases as a collection that can be iterated many times; an iterator is kept as a list."""
    kept = cases if isinstance(cases, Collection) else list(cases)
    if not len(kept):
        raise no_cases(cases)
    return kept


def no_cases(given: object, item: str = "case", place: str = "folder or the split") -> InputError:
    """Return the error to raise where nothing was found, and say why an iterator may be empty."""
    if isinstance(given, Iterator):
        return InputError(
            f"at least one {item} is needed, got an iterator that yields none; an iterator can be read only once, so "
            f"make a list of it, or create it again for each use"
        )
    return InputError(f"at least one {item} is needed, got none; is the {place} empty?")


def subset(cases: Sequence[Case], positions: Sequence[int]) -> Lazy[Case]:
    """Return some of the cases, by index."""
    return Lazy(cases.__getitem__, list(positions))


def not_a_case(item: object) -> InputError:
    """Return the error to raise for anything else that stands in place of a case."""
    return InputError(
        f"cases must be segcal.Case or pairs (logits, labels), got {type(item).__name__}; give [(logits, labels), ...]"
    )


def check_case(case: Case) -> None:
    """Raise unless logits, labels and image are arrays of numbers; passes may have to be read first."""
    for values in (case.logits, *(each for each in (case.labels, case.image) if each is not None)):
        check_numbers(values)


def check_shape(case: Case, num_classes: int) -> None:
    """Raise unless the logits are `[L, *S]` with pixels, the labels `[*S]` and the image `[C, *S]`."""
    check_case(case)
    shape = tuple(case.logits.shape)
    if len(shape) < 2 or shape[0] != num_classes or 0 in shape:
        raise InputError(
            f"logits must have shape ({num_classes}, *S) with num_classes={num_classes}, "
            f"got {shape} of case '{case.name}'; {class_axis_remedy(shape, num_classes, 0)}"
        )
    if case.labels is not None and tuple(case.labels.shape) != shape[1:]:
        logits, labels = (torch.empty(tuple(values.shape), device="meta") for values in (case.logits, case.labels))
        check_same_space(logits, labels, class_axis=0, of=f"case '{case.name}'")
    for number, scores in enumerate(case.each_pass):
        check_numbers(scores)
        if tuple(scores.shape) != shape:
            raise InputError(
                f"passes must have shape (K, {', '.join(map(str, shape))}) to match the logits, got "
                f"{tuple(scores.shape)} of pass {number} of case '{case.name}'; give logits of the same "
                "classes and pixels"
            )
    if case.image is not None and tuple(case.image.shape[1:]) != shape[1:]:
        last = tuple(case.image.shape[:-1]) == shape[1:]
        remedy = "its channels are last: give np.moveaxis(image, -1, 0)" if last else "resample one to the other"
        raise InputError(
            f"image must have shape (C, {', '.join(map(str, shape[1:]))}) to match the logits, "
            f"got {tuple(case.image.shape)} of case '{case.name}'; {remedy}"
        )


def cases_of(given: Iterable[Case | Pair]) -> Iterator[Case]:
    """Yield cases as they are, and pairs of arrays as cases that are named by their number.

    Examples:
        >>> import numpy as np
        >>> [case.name for case in cases_of([(np.zeros((3, 4, 4)), np.zeros((4, 4), int))] * 2)]
        ['0', '1']
    """
    for number, item in enumerate(given):
        if isinstance(item, Case):
            check_case(item)
            yield item
            continue
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise not_a_case(item)
        logits, labels = (to_tensor(values) for values in item)
        if labels.shape not in (logits.shape[1:], logits.shape):
            raise InputError(
                f"labels of an image must have shape {tuple(logits.shape[1:])} to match logits (L, *S) of shape "
                f"{tuple(logits.shape)}, got {tuple(labels.shape)}; give one pair per image: zip(logits, labels)"
            )
        yield Case(str(number), logits, labels)


def batch_cases(logits: Any, labels: Any) -> list[Case]:
    """Return the images of a batch, logits `[B, L, *S]` with labels `[B, *S]` or `[B, L, *S]`, as cases.

    Examples:
        >>> import numpy as np
        >>> batch_cases(np.zeros((2, 3, 4, 4)), np.zeros((2, 4, 4), np.uint8))[1].name
        '1'
    """
    if not (isinstance(logits, np.ndarray | Tensor) and isinstance(labels, np.ndarray | Tensor)):
        raise InputError(
            f"logits and labels must be arrays or tensors, got {type(logits).__name__} and {type(labels).__name__}"
        )
    ours, theirs = tuple(logits.shape), tuple(labels.shape)
    if len(ours) < 3 or theirs not in (ours[:1] + ours[2:], ours):
        raise InputError(
            f"logits must have shape (B, L, *S) and labels (B, *S), got {ours} and {theirs}; "
            "add the axis of the batch, or move the classes to axis 1"
        )
    return list(cases_of(zip(logits, labels, strict=True)))


def known_cases(given: Iterable[Case | Pair] | Array | Tensor, labels: Array | Tensor | None = None) -> Iterable[Case]:
    """Return what `fit` was given as cases; a collection of cases stays as it is and is read when it is needed."""
    if labels is not None:
        return batch_cases(given, labels)
    if isinstance(given, np.ndarray | Tensor):
        raise InputError("labels are needed with an array of logits: fit(logits, labels)")
    if not isinstance(given, Iterable):
        raise not_a_case(given)
    if isinstance(given, list | tuple | Iterator):
        return list(cases_of(as_collection(given)))
    return cast(Iterable[Case], given)


@public
def rater_cases(case: Case, raters: int, *, activation: Activation | None = None) -> list[Case]:
    """Return a case with soft labels as one case per rater, with a label map each, all of one group.

    Fitting and measuring on them is fitting and measuring on the shares: every sum over pixels is linear in the shares
    (see `segcal.functional.soft.rater_labels`). If you have the label map of each rater, make cases of these instead.

    Examples:
        >>> shares = np.array([[[0.5, 1.0]], [[0.5, 0.0]]])  # two classes, one row of two pixels
        >>> first, second = rater_cases(Case("scan", np.zeros((2, 1, 2), np.float32), shares), raters=2)
        >>> first.labels.tolist(), second.labels.tolist(), second.group
        ([[0, 0]], [[1, 0]], 'scan')

    Args:
        case: Its labels are the share of the raters that chose each class, in the shape of its logits. Pixels without a
            vote have shares of 0 and become -1: set `ignore_index=-1`.
        raters: Number of raters.
        activation: "sigmoid" if the shares are those of channels that may overlap, and need not sum to 1.
    """
    if case.labels is None or tuple(case.labels.shape) != tuple(case.logits.shape):
        got = "no labels" if case.labels is None else f"shape {tuple(case.labels.shape)}"
        raise InputError(
            f"shares of raters must have the shape {tuple(case.logits.shape)} of the logits, got {got} of case "
            f"'{case.name}'; give the share of the raters that chose each class"
        )
    shares, kind = to_tensor(case.labels), activation_of(activation, int(case.logits.shape[0]))
    group = case.group or case.name
    return [
        replace(case, name=f"{case.name}-{k + 1}", labels=labels, group=group)
        for k, labels in enumerate(rater_labels(shares, raters, kind))
    ]
