"""A fingerprint of a case's content, by which a copy is recognised whatever its name.

Numbered names say nothing about content: two loaders both number their cases from 0. The fingerprint is a hash of the
labels and logits at a grid of pixels, in float64, so that it depends neither on the precision they are stored in nor on
whether they are on disk. Scores of two images differ in their last digits at every pixel; that they agree at all pixels
of the grid does not happen by chance.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from segcal.files import release_pages
from segcal.types import Array

_LINES = 1 << 11  # lines of pixels that are read, over all classes: each may be a page of a file
_INFINITE = 1e300  # instead of infinity, which marks impossible classes and cannot be subtracted
_ALONG = 16  # pixels of a line


def fingerprint(logits: Any, labels: Array | Tensor) -> str:
    """Return the fingerprint of a case with logits `[L, *S]` and labels `[*S]`; "" if every pixel is the same.

    Logits count relative to those of the first class. A one-logit head `[1, *S]` and its two-class logits `[0, z]` so
    have the same fingerprint. An image with the same scores everywhere, such as an empty slice whose probabilities are
    exactly 0 and 1, cannot be told from the next one and has none.

    Examples:
        >>> logits = np.arange(24.0).reshape(2, 3, 4) ** 2
        >>> labels = np.zeros((3, 4), np.uint8)
        >>> fingerprint(logits, labels) == fingerprint(logits.astype(np.float16), labels.astype(np.int64))
        True
        >>> fingerprint(logits, labels) == fingerprint(logits, labels + 1)
        False
    """
    if not holds_numbers(logits):
        return ""
    scores = np.nan_to_num(sampled_scores(logits), posinf=_INFINITE, neginf=-_INFINITE)
    relative = (scores[1:] - scores[:1] if len(scores) > 1 else scores) + 0.0  # + 0.0 turns -0 into 0
    if (relative == relative[:, :1]).all():
        return ""
    digest = blake2b(repr(tuple(logits.shape[1:])).encode(), digest_size=16)
    digest.update(relative.tobytes())
    digest.update(_numbers(labels[_grid(tuple(logits.shape))], "<i8").tobytes())
    return digest.hexdigest()


def holds_numbers(logits: Any) -> bool:
    """Return whether there are scores to look at, in real numbers; the checks refuse everything else by name."""
    real = logits.dtype.kind in "biuf" if isinstance(logits.dtype, np.dtype) else not logits.dtype.is_complex
    return len(logits.shape) > 1 and 0 not in logits.shape and real


def sampled_scores(logits: Any) -> Float64[np.ndarray, "L N"]:
    """Return scores `[L, *S]`, an array or what is indexed as one, at a grid of pixels, in float64."""
    scores = _numbers(logits[(slice(None), *_grid(tuple(logits.shape)))], "<f8").reshape(logits.shape[0], -1)
    release_pages(logits)
    return scores


def _grid(shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return evenly spaced positions along each spatial axis; those of the last are near each other in memory."""
    classes, *leading, last = shape
    lines = max(1, _LINES // max(classes, 1))
    if not leading:
        return (slice(None, None, _step(last, lines * _ALONG)),)
    each = max(1, round(lines ** (1 / len(leading))))
    return (*(slice(None, None, _step(size, each)) for size in leading), slice(None, None, _step(last, _ALONG)))


def _step(size: int, many: int) -> int:
    return max(1, -(-size // many))


def _numbers(values: Array | Tensor, dtype: str) -> Array:
    """Return a copy in one precision and byte order."""
    if isinstance(values, Tensor):
        values = (values.detach().double() if values.is_floating_point() else values.detach().long()).cpu().numpy()
    with np.errstate(invalid="ignore"):  # signalling NaN
        return np.ascontiguousarray(values, dtype=dtype)
