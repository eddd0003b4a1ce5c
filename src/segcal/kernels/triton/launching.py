"""Launching kernels with little work on the host, and the flag that they raise for logits that are not finite.

An image is calibrated on a GPU in less time than Triton needs to look at the arguments of a kernel and to find its
compiled form. `launch` therefore keeps the compiled form by what Triton derives it from: precisions and alignments of
tensors, and numbers.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from segcal.kernels.dispatch import has_values

PRECISIONS = (torch.float16, torch.bfloat16, torch.float32)
"""Of logits that kernels read."""
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_MOST_COMPILED, _MOST_STREAMS = 4096, 64  # that are kept; far more than a run meets
_compiled: dict[tuple[Any, ...], Any] = {}


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, num_warps: int, **constants: Any) -> None:
    """Run a kernel for a grid of programs on the device of the first argument.

    Args:
        kernel: A function with `triton.jit`.
        grid: Number of programs along one to three axes.
        arguments: Tensors and numbers, in the order of its parameters.
        num_warps: Warps of a program.
        constants: Its `constexpr` parameters, which are its last, in order.
    """
    if _INTERPRETED:
        kernel[grid](*arguments, num_warps=num_warps, **constants)
        return
    device = arguments[0].get_device()
    if device != torch._C._cuda_getDevice():
        with torch.cuda.device(device):  # Triton launches on the current one
            launch(kernel, grid, *arguments, num_warps=num_warps, **constants)
        return
    last = constants.values()
    key = (id(kernel), device, num_warps, grid, *last, *[
        each if type(each) in _NUMBERS else (each.dtype, each.data_ptr() & 15) for each in arguments
    ])  # fmt: skip
    run = _compiled.get(key)
    if run is not None:
        run(*arguments, *last, stream=torch._C._cuda_getCurrentRawStream(device))
        return
    if len(_compiled) >= _MOST_COMPILED:
        _compiled.clear()
    compiled = kernel[grid](*arguments, num_warps=num_warps, **constants)
    _compiled[key] = compiled[(*grid, 1, 1)[:3]]


_NUMBERS = (int, float)


def pieces(length: int, size: int) -> int:
    """Return into how many pieces of a size a length is divided, the last of which may be shorter."""
    return -(-length // size)


def current_stream(tensor: Tensor) -> int:
    """Return the number of the stream that work on a tensor is queued in."""
    return 0 if _INTERPRETED else int(torch._C._cuda_getCurrentRawStream(tensor.get_device()))


@lru_cache(_MOST_STREAMS)
def _stream(device: int, number: int) -> torch.cuda.Stream:
    """Return the current stream of a device, which has this number; PyTorch takes longer to find it than to wait."""
    return torch.cuda.current_stream(device)


class _Flag(threading.local):
    """A number in host memory that kernels write to; each thread has its own, and waits for what it launches."""

    def __init__(self) -> None:
        self.tensor = torch.zeros(1, dtype=torch.int32, pin_memory=not _INTERPRETED)
        self.values = self.tensor.numpy()
        self.deferred: set[int] | None = None  # devices to wait for at the end of a block that defers the question


@cache
def _flags() -> _Flag:
    """Return the flags of all threads, made when first needed: importing this must not need a device."""
    return _Flag()


def flag() -> Tensor:
    """Return the flag of this thread, an argument of kernels that call `note`."""
    return _flags().tensor


def can_note(logits: Tensor, *others: Tensor) -> bool:
    """Return whether the kernels of `context` and `tree` accept these tensors, and so note what is wrong with them."""
    pixels = math.prod(logits.shape[2:])
    return all(each.dtype in PRECISIONS for each in (logits, *others)) and 0 < pixels < 1 << 30


def was_noted(logits: Tensor) -> bool:
    """Return whether a kernel has raised the flag since this was last asked; waits for the device of the logits.

    A kernel that was not asked about may have raised it for other logits; whoever finds it raised looks closer. In a
    block of `asked_at_end` the answer is no, and the flag stays as it is.
    """
    if not has_values(logits):
        return False
    flags = _flags()
    if flags.deferred is not None:
        flags.deferred.add(logits.get_device())
        return False
    if not _INTERPRETED:
        _stream(logits.get_device(), current_stream(logits)).synchronize()
    return _lowered(flags)


@contextmanager
def asked_at_end() -> Iterator[list[bool]]:
    """Let `was_noted` wait for nothing inside a `with` block; the list then holds whether the flag was raised in it."""
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
    if not _INTERPRETED:
        torch.cuda.synchronize(device)


def _lowered(flags: _Flag) -> bool:
    """Return whether the flag was up, and take it down."""
    noted = bool(flags.values[0])
    flags.values[0] = 0
    return noted


@triton.jit
def note(flag_ptr, bad):
    """Raise the flag if something is bad at one of some pixels; a store that no pixel makes takes no time."""
    tl.store(flag_ptr + bad.to(tl.int32) * 0, 1, mask=bad)
