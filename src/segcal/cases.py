"""Cases as checked tensors: one slab at a time, so that a volume of any size is read in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from segcal.files import release_pages
from segcal.functional.checks import activation_of, check_labels, check_logits, check_same_space, class_axis_remedy
from segcal.functional.soft import rater_labels
from segcal.types import Activation, Array, Case, IgnoreIndex, InputError, public

_SLAB = 1 << 25
"""Number of scores read at a time (128 MiB in float32)."""

_WHOLE = 8
"""Slabs start at multiples of this many slices, so that results computed in tiles do not depend on the slabs."""


class Slab(NamedTuple):
    """Consecutive slices of a case along its first spatial axis, with a batch axis of one.

    Attributes:
        logits: Scores `[1, L, *S]` of the slices.
        image: Their image `[1, C, *S]`, if the case has one.
        rows: Position of the slices in the case.
        inner: Position, in the slab, of the slices that are not only context.
    """

    logits: Tensor
    image: Tensor | None
    rows: slice
    inner: slice

    @property
    def inner_rows(self) -> slice:
        """Position of the inner slices in the case."""
        return slice(self.rows.start + self.inner.start, self.rows.start + self.inner.stop)


def reread(cases: Iterable[Case]) -> Collection[Case]:
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


class Part(Sequence[Case]):
    """Some of the cases, by index; each is read on access."""

    def __init__(self, cases: Sequence[Case], places: Sequence[int]) -> None:
        self._cases, self._places = cases, list(places)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Case: ...
    @overload
    def __getitem__(self, index: slice) -> Part: ...
    def __getitem__(self, index: int | slice) -> Case | Part:
        """Return one case, or a part of this part."""
        if isinstance(index, slice):
            return Part(self._cases, self._places[index])
        return self._cases[self._places[index]]


@public
def rater_cases(case: Case, raters: int, *, activation: Activation | None = None) -> list[Case]:
    """Return a case with soft labels as one case per rater, with a label map each, all of one group.

    Fitting and measuring on them is fitting and measuring on the shares: every sum over pixels is linear in the shares
    (see `segcal.functional.soft.rater_labels`). If you have the label map of each rater, make cases of these instead.

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


def labels_of(case: Case, num_classes: int, ignore_index: IgnoreIndex) -> Tensor:
    """Return the labels `[1, *S]` of a case as int64, -1 where ignored, checked against its logits."""
    if case.labels is None:
        raise InputError(f"fitting and measuring need labels, and case '{case.name}' has none; add them")
    labels, name = to_tensor(case.labels), f"case '{case.name}'"
    if len(case.logits.shape) != labels.ndim + 1 or tuple(case.logits.shape[1:]) != tuple(labels.shape):
        check_same_space(torch.empty(tuple(case.logits.shape), device="meta"), labels, class_axis=0, of=name)
    if case.image is not None and tuple(case.image.shape[1:]) != tuple(labels.shape):
        last = tuple(case.image.shape[:-1]) == tuple(labels.shape)
        remedy = "its channels are last: give np.moveaxis(image, -1, 0)" if last else "resample one to the other"
        raise InputError(
            f"image must have shape (C, {', '.join(map(str, labels.shape))}) to match the labels, "
            f"got {tuple(case.image.shape)} of {name}; {remedy}"
        )
    return check_labels(labels, num_classes, ignore_index, of=name).unsqueeze(0)


def slabs_of(case: Case, num_classes: int, *, context: int = 0, device: torch.device | None = None) -> Iterator[Slab]:
    """Yield a case in slabs of bounded size, each with up to `context` more slices on either side."""
    shape = tuple(case.logits.shape)
    if len(shape) < 2 or shape[0] != num_classes or 0 in shape:
        raise InputError(
            f"logits must have shape ({num_classes}, *S) with num_classes={num_classes}, "
            f"got {shape} of case '{case.name}'; {class_axis_remedy(shape, num_classes, 0)}"
        )
    step = max(1, _SLAB // math.prod((shape[0], *shape[2:])) // _WHOLE) * _WHOLE
    for start in range(0, shape[1], step):
        stop = min(start + step, shape[1])
        rows = slice(max(0, start - context), min(stop + context, shape[1]))
        logits = to_tensor(case.logits[:, rows]).to(device)
        release_pages(case.logits)
        logits = check_logits(logits, num_classes, class_axis=0, start=rows.start, of=f"case '{case.name}'")
        image = None if case.image is None else to_tensor(case.image[:, rows]).to(device).unsqueeze(0)
        yield Slab(logits.unsqueeze(0), image, rows, slice(start - rows.start, stop - rows.start))


def to_tensor(values: Array | Tensor) -> Tensor:
    """Return an array as a tensor in native byte order; memory-mapped arrays are read here, and only here."""
    if isinstance(values, Tensor):
        return values.detach()
    if values.dtype.kind not in "biuf":
        raise InputError(f"arrays must hold numbers, got dtype {values.dtype}; save them as numbers")
    wide = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64, np.dtype(np.uint64): np.int64}
    native = values.dtype.newbyteorder("=")
    copied = torch.from_numpy(np.array(values, dtype=wide.get(native, native)))
    release_pages(values)
    return copied
