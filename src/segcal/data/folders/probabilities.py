"""Probabilities of a file as the logits of a case: at once, or part by part where they are large."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from torch import Tensor

from segcal.data.folders.expected import shared_tensor
from segcal.data.io import base
from segcal.files import release_pages
from segcal.functional.probability import logits_from_probabilities
from segcal.types import Array


def logits_of(probs: Array) -> Array | Tensor:
    """Return logits whose softmax is `probs` `[L, *S]`; those of a large volume are computed when they are read."""
    if 4 * probs.size <= base.IN_MEMORY:
        return logits_from_probabilities(shared_tensor(probs))
    return cast(Array, LazyLogits(probs))


class LazyLogits:
    """Logits of probabilities that stay on disk: an array for reading, converted part by part.

    >>> LazyLogits(np.full((2, 3), 0.5, np.float16))[:, 1]
    array([-0.6931472, -0.6931472], dtype=float32)
    """

    def __init__(self, probs: Array) -> None:
        self.probs, self.shape, self.ndim = probs, probs.shape, probs.ndim
        self.dtype = np.dtype(np.float64 if probs.dtype == np.float64 else np.float32)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Any) -> Array:
        part = np.array(self.probs[index])
        release_pages(self.probs)
        logits: Array = logits_from_probabilities(shared_tensor(part)).numpy()
        return logits

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[...].astype(self.dtype if dtype is None else dtype, copy=False)
