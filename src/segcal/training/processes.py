"""Devices, and the processes that torchrun starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, distributed

from segcal.types import InputError


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; "auto" is a GPU if there is one (under torchrun, the GPU of this process)."""
    if name == "auto":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device '{name}' cannot be used ({str(error).splitlines()[0]}); try 'cpu'") from error


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the processes that torchrun started, if any, through gloo (CPU) or NCCL (GPU)."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or distributed.is_initialized():
        yield
        return
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def is_first_process() -> bool:
    """Return whether this process is the one that writes and prints."""
    return int(os.environ.get("RANK", "0")) == 0


def rank_and_world() -> tuple[int, int]:
    """Return the rank of this process and the number of processes."""
    if distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def sum_over_processes(values: Tensor) -> Tensor:
    """Return the sum of `values` over all processes."""
    if rank_and_world()[1] == 1:
        return values
    total = values.clone()
    distributed.all_reduce(total)
    return total
