"""Devices, and the processes that torchrun starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from itertools import count

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from segcal.training.environment import launched
from segcal.types import InputError


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; "auto" is a GPU if there is one (under torchrun, the GPU of this process)."""
    if name == "auto":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    try:
        one = torch.ones(1, device=name)
        one.item()  # the device "meta" computes nothing
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]  # PyTorch goes on with lists of its backends
        raise InputError(f"device '{name}' cannot be used ({reason}); try 'cpu'") from error
    return one.device


_groups = count()


@cache
def _store() -> tuple[Store, int, int]:
    """Return the store of torchrun, this process's rank and the number of processes; kept, since ports bind once."""
    store, rank, world = next(rendezvous("env://"))
    return store, rank, world


@contextmanager
def process_group(device: torch.device, *, patience: timedelta | None = None) -> Iterator[None]:
    """Join the processes that torchrun started, if any, through gloo (CPU) or NCCL (GPU).

    `patience` is how long a process waits for another; PyTorch's default is some minutes.
    """
    if launched()[1] == 1 or distributed.is_initialized():
        yield
        return
    store, rank, world = _store()
    # a prefix of its own: a process that is early must not find the addresses of the group before
    own = PrefixStore(f"segcal/{next(_groups)}", store)
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=own, rank=rank, world_size=world, timeout=patience)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def is_first_process() -> bool:
    """Return whether this process is the one that writes and prints."""
    return launched()[0] == 0


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
