"""Probabilities of a file as the logits of a case: at once, or part by part where they are large."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from segcal.data.io import base
from segcal.files import release_pages
from segcal.functional.arrays import shared_tensor, split_index
from segcal.functional.checks import check_probabilities
from segcal.functional.probability import at_least_float32, logits_from_probabilities, logits_from_sigmoid
from segcal.types import Activation, Array, InputError

_AT_ONCE = 1 << 22
"""Probabilities converted at a time, since this is done in float64."""


def logits_of(probs: Array, activation: Activation, *, origin: tuple[int, ...], of: str) -> Array | Tensor:
    """Return logits whose softmax or sigmoid is `probs` `[L, *S]`; those of a large volume are computed when read."""
    if probs.dtype.kind != "f":
        raise InputError(f"probabilities must be floating point, got {probs.dtype} of {of}; convert them first")
    lazy = LazyLogits(probs, activation, origin=origin, of=of)
    return torch.from_numpy(lazy[...]) if 4 * probs.size <= base.IN_MEMORY else cast(Array, lazy)


def converted(probs: Array, activation: Activation = "softmax") -> Tensor:
    """Return the logits of probabilities `[L, *S]`, each pixel with the predicted label of its probabilities."""
    flat = shared_tensor(np.ascontiguousarray(probs)).reshape(len(probs), -1)
    logits = torch.empty(flat.shape, dtype=at_least_float32(flat[:, :0]).dtype)
    step = max(1, _AT_ONCE // len(flat))
    for start in range(0, flat.shape[1], step):
        part = flat[None, :, start : start + step]
        convert = logits_from_sigmoid if activation == "sigmoid" else logits_from_probabilities
        logits[:, start : start + step] = convert(part)[0]
    return logits.view(probs.shape)


class LazyLogits:
    """Logits of probabilities that stay on disk: an array for reading, checked and converted part by part.

    Args:
        probs: Probabilities `[L, *S]`.
        activation: What turns the logits into them.
        origin: Position of the first pixel in the file, for messages.
        of: Name of the case, for messages.

    Examples:
        >>> LazyLogits(np.full((2, 3), 0.5, np.float16))[:, 1]
        array([-0.6931472, -0.6931472], dtype=float32)
    """

    def __init__(
        self, probs: Array, activation: Activation = "softmax", *, origin: tuple[int, ...] = (), of: str = ""
    ) -> None:
        self.probs, self.shape, self.ndim = probs, probs.shape, probs.ndim
        self.activation, self.of = activation, of
        self.origin = origin or (0,) * (probs.ndim - 1)
        self.dtype = np.dtype(np.float64 if probs.dtype == np.float64 else np.float32)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Any) -> Array:
        classes, space = split_index(index, self.ndim)
        exclusive = self.activation == "softmax"
        # the label of a pixel depends on all classes, and sigmoid channels do not depend on each other
        read = slice(None) if exclusive or not isinstance(classes, slice) else classes
        part = np.array(self.probs[(read, *space)])
        release_pages(self.probs)
        if all(isinstance(key, slice) for key in space):  # single pixels that were sampled have no position to name
            origin = tuple(first + (key.start or 0) for first, key in zip(self.origin, space, strict=False))
            check_probabilities(shared_tensor(part), exclusive=exclusive, origin=origin, of=self.of)
        found: Array = converted(part, self.activation).numpy()
        return found if read is classes else found[classes]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[...].astype(self.dtype if dtype is None else dtype, copy=False)
