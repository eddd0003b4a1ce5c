"""The flag that kernels raise for logits that are not finite, so that no pass is needed to look for them."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.kernels.dispatch import device_turn, has_values
from segcal.kernels.triton.launching import INTERPRETED, PRECISIONS, current_stream

_MOST_STREAMS = 64  # that are kept; far more than a run meets


@lru_cache(_MOST_STREAMS)
def _stream(device: int, number: int) -> torch.cuda.Stream:
    """Return the current stream of a device, which has this number; PyTorch takes longer to find it than to wait."""
    return torch.cuda.current_stream(device)


class _Flag(threading.local):
    """A number in host memory that kernels write to; each thread has its own, and waits for what it launches."""

    def __init__(self) -> None:
        self.tensor = torch.zeros(1, dtype=torch.int32, pin_memory=not INTERPRETED)
        self.values = self.tensor.numpy()
        self.deferred: set[int] | None = None  # devices to wait for at the end of a block that defers the question


@cache
def _flags() -> _Flag:
    """Return the flags of all threads, made when first needed: importing this must not need a device."""
    return _Flag()


def flag() -> Tensor:
    """Return the flag of this thread, an argument of kernels that call `flag_nonfinite`."""
    return _flags().tensor


def checks_finite(logits: Tensor, *others: Tensor) -> bool:
    """Return whether the kernels of `context` and `tree` accept these tensors, and flag logits that are not finite."""
    pixels = math.prod(logits.shape[2:])
    return all(each.dtype in PRECISIONS for each in (logits, *others)) and 0 < pixels < 1 << 30


def found_nonfinite(logits: Tensor) -> bool:
    """Return whether a kernel has raised the flag since this was last asked; waits for the device of the logits.

    A kernel that was not asked about may have raised it for other logits; whoever finds it raised looks closer. In a
    block of `deferred_finite_checks` the answer is no, and the flag stays as it is.
    """
    if not has_values(logits):
        return False
    flags = _flags()
    if flags.deferred is not None:
        flags.deferred.add(logits.get_device())
        return False
    if not INTERPRETED:
        _stream(logits.get_device(), current_stream(logits)).synchronize()
    return _lowered(flags)


@contextmanager
def deferred_finite_checks() -> Iterator[list[bool]]:
    """Let `found_nonfinite` answer no at once inside a `with` block; the list then holds whether the flag is up."""
    flags, answer = _flags(), list[bool]()
    if flags.deferred is not None:  # the outer block asks
        yield answer
        return
    _wait()
    _lowered(flags)  # it may be up because of logits from before
    flags.deferred = set()
    try:
        yield answer
    finally:
        devices, flags.deferred = flags.deferred, None
        for device in devices:
            _wait(device)
        answer.append(_lowered(flags))


def _wait(device: int | None = None) -> None:
    if not INTERPRETED:
        with device_turn:
            torch.cuda.synchronize(device)


def _lowered(flags: _Flag) -> bool:
    """Return whether the flag was up, and take it down."""
    raised = bool(flags.values[0])
    flags.values[0] = 0
    return raised


@triton.jit
def flag_nonfinite(flag_ptr, bad):
    """Raise the flag if something is bad at one of some pixels; a store that no pixel makes takes no time."""
    tl.store(flag_ptr + bad.to(tl.int32) * 0, 1, mask=bad)
