"""Tasks side by side, on the threads that PyTorch computes with.

After each of its operations PyTorch's threads spin for some milliseconds in case another one follows. Threads of our
own would have to share the cores with them, and a kernel would take up to twice as long. Where PyTorch's OpenMP runtime
can be reached (GNU's or LLVM's on Linux), tasks therefore run on the very threads that spin; elsewhere, and in a forked
process, which does not inherit threads, they run on a pool.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch

_HOME = os.getpid()
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_LIBRARY = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"


def run_all(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run tasks side by side and return their results in order."""
    threads = torch.get_num_threads()
    if threads == 1 or len(tasks) <= 1:
        return [task() for task in tasks]
    parallel = _parallel_region() if os.getpid() == _HOME else None
    if parallel is None:
        futures = [_pool(os.getpid(), threads).submit(task) for task in tasks[1:]]
        return [tasks[0](), *(future.result() for future in futures)]
    return _run_in_region(parallel, threads, tasks)


def _run_in_region(parallel: Callable[..., None], threads: int, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run tasks in a parallel region of OpenMP; each thread takes the next task until none is left."""
    found: list[Any] = [None] * len(tasks)
    failures: list[BaseException] = []
    waiting = iter(range(len(tasks)))

    def take(_: int | None) -> None:
        try:
            for k in waiting:  # `next` of a range is atomic, so that no task is taken twice
                found[k] = tasks[k]()
        except BaseException as error:
            failures.append(error)

    # always as many threads as PyTorch's own regions have: another number would end its threads and start new ones
    parallel(_CALLBACK(take), None, threads, 0)
    if failures:
        raise failures[0]
    return found


@cache
def _parallel_region() -> Callable[..., None] | None:
    """Return the entry of the OpenMP runtime that PyTorch is linked with; None if it has none that is known."""
    try:
        parallel = ctypes.CDLL(str(_LIBRARY)).GOMP_parallel  # also found in the libraries that this one is linked with
    except (OSError, AttributeError):
        return None
    parallel.argtypes, parallel.restype = [_CALLBACK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return parallel


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return one pool per process and number of threads."""
    return ThreadPoolExecutor(threads, thread_name_prefix="segcal")
