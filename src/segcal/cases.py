"""Cases as checked tensors: one slab at a time, so that a volume of any size is read in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from segcal.functional.checks import check_labels, check_logits, check_same_space
from segcal.types import Array, Case, IgnoreIndex, InputError

_SLAB = 1 << 25
"""Scores read at a time (128 MiB in float32)."""

_WHOLE = 8
"""Slabs begin at multiples of this many slices, so that what is computed in tiles is the same in slabs."""


class Slab(NamedTuple):
    """Consecutive slices of a case along its first spatial axis, with a batch axis of one.

    `rows` says which slices of the case these are; `inner` which of them are not there only as context.
    """

    logits: Tensor
    image: Tensor | None
    rows: slice
    inner: slice


def reread(cases: Iterable[Case]) -> Collection[Case]:
    """The cases as something that can be gone through many times; a one-way iterator is kept as a list."""
    kept = cases if isinstance(cases, Collection) else list(cases)
    if not len(kept):
        raise InputError("at least one case is needed, got none; is the folder or the split empty?")
    return kept


class Part(Sequence[Case]):
    """Some of the cases, by their places; each is read when it is asked for."""

    def __init__(self, cases: Sequence[Case], places: Sequence[int]) -> None:
        self._cases, self._places = cases, list(places)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Case: ...
    @overload
    def __getitem__(self, index: slice) -> Part: ...
    def __getitem__(self, index: int | slice) -> Case | Part:
        """One case, or a part of this part."""
        if isinstance(index, slice):
            return Part(self._cases, self._places[index])
        return self._cases[self._places[index]]


def labels_of(case: Case, num_classes: int, ignore_index: IgnoreIndex) -> Tensor:
    """The labels `[1, *S]` of a case as int64, -1 where ignored, checked against its logits."""
    if case.labels is None:
        raise InputError(f"labels are needed to fit and to measure, and case '{case.name}' has none; add them")
    labels, name = to_tensor(case.labels), f"case '{case.name}'"
    if len(case.logits.shape) != labels.ndim + 1 or tuple(case.logits.shape[1:]) != tuple(labels.shape):
        check_same_space(torch.empty(tuple(case.logits.shape), device="meta"), labels, class_axis=0, of=name)
    if case.image is not None and tuple(case.image.shape[1:]) != tuple(labels.shape):
        raise InputError(
            f"image must have shape (C, {', '.join(map(str, labels.shape))}) to match the labels, "
            f"got {tuple(case.image.shape)} of {name}; resample one to the other"
        )
    return check_labels(labels, num_classes, ignore_index, of=name).unsqueeze(0)


def slabs_of(case: Case, num_classes: int, *, context: int = 0, device: torch.device | None = None) -> Iterator[Slab]:
    """Go through a case in slabs of bounded size, each with up to `context` more slices on either side."""
    shape = tuple(case.logits.shape)
    if len(shape) < 2 or shape[0] != num_classes or 0 in shape:
        raise InputError(
            f"logits must have shape ({num_classes}, *S) with num_classes={num_classes}, "
            f"got {shape} of case '{case.name}'; set num_classes or fix the logits"
        )
    step = max(1, _SLAB // math.prod((shape[0], *shape[2:])) // _WHOLE) * _WHOLE
    for start in range(0, shape[1], step):
        stop = min(start + step, shape[1])
        rows = slice(max(0, start - context), min(stop + context, shape[1]))
        logits = to_tensor(case.logits[:, rows]).to(device)
        check_logits(logits, num_classes, class_axis=0, of=f"case '{case.name}'")
        image = None if case.image is None else to_tensor(case.image[:, rows]).to(device).unsqueeze(0)
        yield Slab(logits.unsqueeze(0), image, rows, slice(start - rows.start, stop - rows.start))


def to_tensor(values: Array | Tensor) -> Tensor:
    """A tensor of an array, in native byte order; arrays on disk are read here, and only here."""
    if isinstance(values, Tensor):
        return values.detach()
    if values.dtype.kind not in "biuf":
        raise InputError(f"arrays must hold numbers, got dtype {values.dtype}; save them as numbers")
    wide = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64, np.dtype(np.uint64): np.int64}
    native = values.dtype.newbyteorder("=")
    return torch.from_numpy(np.array(values, dtype=wide.get(native, native)))
