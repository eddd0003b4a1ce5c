"""Probabilities of a file as the logits of a case: at once, or part by part where they are large."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from torch import Tensor

from segcal.data.folders.expected import shared_tensor
from segcal.data.io import base
from segcal.files import release_pages
from segcal.functional.probability import logits_from_probabilities, logits_from_sigmoid
from segcal.types import Activation, Array


def logits_of(probs: Array, activation: Activation = "softmax") -> Array | Tensor:
    """Return logits whose softmax or sigmoid is `probs` `[L, *S]`; those of a large volume are computed when read."""
    if 4 * probs.size <= base.IN_MEMORY:
        return _CONVERTERS[activation](shared_tensor(probs))
    return cast(Array, LazyLogits(probs, activation))


_CONVERTERS = {"softmax": logits_from_probabilities, "sigmoid": logits_from_sigmoid}


class LazyLogits:
    """Logits of probabilities that stay on disk: an array for reading, converted part by part.

    >>> LazyLogits(np.full((2, 3), 0.5, np.float16))[:, 1]
    array([-0.6931472, -0.6931472], dtype=float32)
    """

    def __init__(self, probs: Array, activation: Activation = "softmax") -> None:
        self.probs, self.shape, self.ndim = probs, probs.shape, probs.ndim
        self.activation = activation
        self.dtype = np.dtype(np.float64 if probs.dtype == np.float64 else np.float32)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Any) -> Array:
        part = np.array(self.probs[index])
        release_pages(self.probs)
        logits: Array = _CONVERTERS[self.activation](shared_tensor(part)).numpy()
        return logits

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[...].astype(self.dtype if dtype is None else dtype, copy=False)
