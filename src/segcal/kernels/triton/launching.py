"""Launching kernels with little work on the host.

An image is calibrated on a GPU in less time than Triton needs to look at the arguments of a kernel and to find its
compiled form. `launch` therefore keeps the compiled form by what Triton derives it from: precisions and alignments of
tensors, and numbers.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

PRECISIONS = (torch.float16, torch.bfloat16, torch.float32)
"""Precisions of logits that kernels read."""
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_MOST_COMPILED = 4096  # that are kept; far more than a run meets
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
    if INTERPRETED:
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
    return 0 if INTERPRETED else int(torch._C._cuda_getCurrentRawStream(tensor.get_device()))
