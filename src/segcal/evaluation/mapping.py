"""Methods of an evaluation, and the one way in which the slabs of a case are mapped by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from segcal.calibrators import Calibrator
from segcal.cases import StreamedCase
from segcal.functional.checks import check_logits, probability_doubt
from segcal.types import InputError, Logits

Method: TypeAlias = Calibrator | Callable[[Logits], Logits] | None
"""A fitted calibrator, a function from logits `[1, L, *S]` to calibrated logits, or None for the scores as they are."""


def device_of(methods: Iterable[Method]) -> torch.device | None:
    """Return the device of the first calibrator, where cases are read to; None without one."""
    return next((method.fitted.device for method in methods if isinstance(method, Calibrator)), None)


def calibrated_slabs(case: StreamedCase, method: Method) -> Iterator[tuple[slice, Tensor]]:
    """Yield the logits of a case slab by slab with their position, calibrated if there is a method.

    A function that is not a calibrator may look at any distance, so it is given the whole case.
    """
    if isinstance(method, Calibrator):
        for part in method.calibrate_case(case):
            rows, logits = part.rows, part.logits()
            del part  # as read, with its context, before the next is read
            yield rows, logits
        return
    if method is None:
        for slab in case.slabs():
            yield slab.rows, slab.logits
        return
    whole = torch.cat([slab.logits for slab in case.slabs()], dim=2)
    with torch.no_grad():
        found = method(whole)
    if not isinstance(found, Tensor) or found.shape != whole.shape:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"a method must return calibrated logits of shape {tuple(whole.shape)}, as it is given, got {got} for "
            f"case '{case.name}'; return log-probabilities where it computes probabilities"
        )
    if probability_doubt(found[0]):
        raise InputError(
            f"a method must return calibrated logits, got probabilities for case '{case.name}'; return their logarithms"
        )
    found = check_logits(found, case.shape[0], class_axis=1, of=f"a method on case '{case.name}'")
    yield slice(0, found.shape[2]), found
