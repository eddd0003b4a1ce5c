"""Calibrating on a GPU without waiting after each call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from segcal.kernels.dispatch import deferred_finite_checks
from segcal.types import InputError, public


@public
@contextmanager
def deferred_checks() -> Iterator[None]:
    """Refuse logits on a GPU that are not finite at the end of a `with` block, instead of at the end of each call.

    On a GPU `forward`, `predict_proba` and `temperature` wait for the device, because only then is it known whether the
    logits are refused. A small image is calibrated in less time than a call takes to start, so that the device is idle
    between calls. Inside the block calls of this thread do not wait, and the results of logits that are not finite are
    undefined until the block raises. On a CPU, and with methods that look at their logits first, calls raise at once.

    Examples:
        >>> import torch
        >>> import segcal
        >>> calibrator = segcal.create("ts", num_classes=3)
        >>> batches = [torch.randn(2, 3, 8, 8) for _ in range(4)]
        >>> _ = calibrator.fit([segcal.Case("a", batches[0][0], torch.zeros(8, 8, dtype=torch.int64))])
        >>> with segcal.deferred_checks():
        ...     results = [calibrator.predict_proba(batch) for batch in batches]
    """
    with deferred_finite_checks() as found:
        yield
    if any(found):
        raise InputError(
            "logits must be finite, got NaN or infinity in a call of this block; make the calls outside of "
            "segcal.deferred_checks() to see in which one and where"
        )
