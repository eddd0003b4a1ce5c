"""Arguments of `segcal.evaluate` as users give them: cases or pairs of arrays, methods by name or one calibrator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from torch import Tensor

from segcal.calibrators import Calibrator
from segcal.evaluation.mapping import Method
from segcal.evaluation.protocol import ProtocolSettings
from segcal.functional.arrays import to_tensor
from segcal.types import Array, Case, InputError

Pair: TypeAlias = tuple[Array | Tensor, Array | Tensor]
"""Logits `[L, *S]` and labels `[*S]` of one image or volume."""

UNCALIBRATED = "UC"


def cases_of(given: Iterable[Case | Pair]) -> Iterator[Case]:
    """Yield cases as they are, and pairs of arrays as cases that are named by their number.

    >>> import numpy as np
    >>> [case.name for case in cases_of([(np.zeros((3, 4, 4)), np.zeros((4, 4), int))] * 2)]
    ['0', '1']
    """
    for number, item in enumerate(given):
        if isinstance(item, Case):
            yield item
            continue
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise InputError(
                f"cases must be segcal.Case or pairs (logits, labels), got {type(item).__name__}; "
                "give [(logits, labels), ...]"
            )
        logits, labels = (to_tensor(values) for values in item)
        if logits.shape[1:] != labels.shape:
            raise InputError(
                f"labels of an image must have shape {tuple(logits.shape[1:])} to match logits (L, *S) of shape "
                f"{tuple(logits.shape)}, got {tuple(labels.shape)}; give one pair per image: zip(logits, labels)"
            )
        yield Case(str(number), logits, labels)


def methods_of(given: Mapping[str, Method] | Calibrator) -> Mapping[str, Method]:
    """Return methods by name; one calibrator is compared with the uncalibrated scores."""
    return {UNCALIBRATED: None, given.method.upper(): given} if isinstance(given, Calibrator) else given


def settings_of(given: Mapping[str, Method] | Calibrator, settings: ProtocolSettings) -> ProtocolSettings:
    """Return the settings, with those that one calibrator was built with where they are not given."""
    if not isinstance(given, Calibrator):
        return settings
    known: ProtocolSettings = {
        "num_classes": given.num_classes,
        "activation": given.activation,
        "ignore_index": given.ignore_index,
        "background": given.background,
    }
    return {**known, **settings}
