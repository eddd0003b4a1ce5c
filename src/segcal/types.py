"""The shapes and names that every other module speaks in.

`B` images, `L` classes, `C` image channels, `*S` = `H W` or `D H W`. Logits and probabilities are never told apart by
their values: they have different names here and explicit converters in `segcal.functional.probability`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Integer
from torch import Tensor

Logits: TypeAlias = Float[Tensor, "B L *S"]
Probs: TypeAlias = Float[Tensor, "B L *S"]
Labels: TypeAlias = Integer[Tensor, "B *S"]
Mask: TypeAlias = Bool[Tensor, "B *S"]
Image: TypeAlias = Float[Tensor, "B C *S"]
Temperature: TypeAlias = Float[Tensor, "B 1 *S"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
IgnoreIndex: TypeAlias = int | Sequence[int] | None


class InputError(ValueError):
    """Data or settings that no right answer can be computed from; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Case:
    """One image or volume with its scores and truth, without the batch axis.

    Args:
        name: What messages, tables and files call it.
        logits: Scores `[L, *S]`; a memory-mapped array stays on disk until it is needed.
        labels: True classes `[*S]`; None where nobody labelled it, which is enough to apply a calibrator.
        image: The picture `[C, *S]` that the scores were computed from, for methods that look at it.
        spacing: Size of a pixel along each axis of `*S`.
        group: Cases of one group (a video, a patient) are never split between fitting and validation.
    """

    name: str
    logits: Array | Tensor
    labels: Array | Tensor | None
    image: Array | Tensor | None = None
    spacing: tuple[float, ...] | None = None
    group: str | None = None
