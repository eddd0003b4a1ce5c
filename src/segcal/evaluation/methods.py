"""Methods of an evaluation as users give them, and the one way in which the slabs of a case are mapped by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from segcal.calibrators import Calibrator
from segcal.cases import StreamedCase
from segcal.evaluation.protocol import Protocol, ProtocolSettings
from segcal.functional.checks import check_logits, probability_doubt
from segcal.types import InputError, Logits

Method: TypeAlias = Calibrator | Callable[[Logits], Logits] | None
"""A fitted calibrator, a function from logits `[1, L, *S]` to calibrated logits, or None for the scores as they are."""

UNCALIBRATED = "UC"


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


def check_methods(methods: Mapping[str, Method], protocol: Protocol) -> None:
    """Raise unless every method is a function, or a calibrator that was built for such a head."""
    for name, method in methods.items():
        if method is not None and not callable(method):
            raise InputError(
                f"a method must be a fitted calibrator, a function of logits or None, got {type(method).__name__} for "
                f"'{name}'; load a saved calibrator with segcal.load"
            )
        if isinstance(getattr(method, "calibrator", None), Calibrator):  # a segcal.CalibratedModel
            raise InputError(
                f"a method maps logits to calibrated logits, got {type(method).__name__} for '{name}', which maps "
                f"images to probabilities; give its calibrator: {{'{name}': calibrated.calibrator}}"
            )
        if not isinstance(method, Calibrator):
            continue
        if method.num_classes != protocol.num_classes:
            raise InputError(
                f"calibrator '{name}' was built for num_classes={method.num_classes}, "
                f"got num_classes={protocol.num_classes}; fit one on data with as many classes"
            )
        if method.activation != protocol.activation:
            raise InputError(
                f"calibrator '{name}' was built for activation='{method.activation}', "
                f"got activation='{protocol.activation}'; set activation, or fit one on such data"
            )


def device_of(methods: Iterable[Method]) -> torch.device | None:
    """Return the device of the first calibrator, where cases are read to; None without one."""
    return next((method.fitted.device for method in methods if isinstance(method, Calibrator)), None)


def calibrated_slabs(case: StreamedCase, method: Method) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
    """Yield the position of each slab of a case, its logits as the method maps them, and its temperatures, if any.

    A function that is not a calibrator may look at any distance, so it is given the whole case.
    """
    if isinstance(method, Calibrator):
        for part in method.calibrate_case(case):
            rows, logits, temperature = part.rows, part.logits(), part.temperature
            del part  # as read, with its context, before the next is read
            yield rows, logits, temperature
        return
    if method is None:
        for slab in case.slabs():
            yield slab.rows, slab.logits, None
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
    yield slice(0, found.shape[2]), found, None
