"""Labels and slabs of one case, checked: every value that enters segcal from a case comes through here."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from segcal.files import release_pages
from segcal.functional.arrays import to_tensor
from segcal.functional.checks import IGNORED, check_labels, check_same_space, class_axis_remedy
from segcal.functional.geometry import foreground
from segcal.types import Array, Case, IgnoreIndex, InputError, Labels

SLAB = 1 << 25
"""Number of scores read at a time (128 MiB in float32)."""

_WHOLE = 8
"""Slabs start at multiples of this many slices, so that results computed in tiles do not depend on the slabs."""


def labels_of(case: Case, num_classes: int, ignore_index: IgnoreIndex) -> Labels:
    """Return the labels `[1, *S]` of a case, whose shape was checked, as int64, -1 where ignored."""
    if case.labels is None:
        raise InputError(f"fitting and measuring need labels, and case '{case.name}' has none; add them")
    return check_labels(to_tensor(case.labels), num_classes, ignore_index, of=f"case '{case.name}'").unsqueeze(0)


def labels_inside(labels: Labels, background: int | None) -> Labels:
    """Return labels with -1 also where the background lies outside the region *All*; None keeps every label."""
    if background is None:
        return labels
    inside = foreground(labels, IGNORED, background=background)
    # numpy, because small operations wake PyTorch's threads, which then spin
    return torch.from_numpy(np.where(inside.cpu().numpy(), labels.cpu().numpy(), IGNORED)).to(labels.device)


def check_shape(case: Case, num_classes: int) -> None:
    """Raise unless the logits are `[L, *S]` with pixels, the labels `[*S]` and the image `[C, *S]`."""
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


def slab_rows(shape: tuple[int, ...], context: int = 0) -> Iterator[tuple[slice, slice]]:
    """Yield the position of each slab of logits of a shape `[L, *S]`, and its inner slices without context in it."""
    step = max(1, SLAB // math.prod((shape[0], *shape[2:])) // _WHOLE) * _WHOLE
    for start in range(0, shape[1], step):
        stop = min(start + step, shape[1])
        rows = slice(max(0, start - context), min(stop + context, shape[1]))
        yield rows, slice(start - rows.start, stop - rows.start)


def read_scores(scores: Array | Tensor, place: tuple[slice, ...], device: torch.device | None) -> Tensor:
    """Return a part of the scores `[L, *S]` as they are stored, contiguous and on a device."""
    part = to_tensor(scores[place]).to(device)
    release_pages(scores)
    return part.contiguous()
