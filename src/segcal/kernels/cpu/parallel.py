"""Tasks side by side: the calling thread and a pool take the next task until none is left.

Kernels release the GIL, so that tasks run at the same time. There are more tasks than threads: PyTorch's threads spin
for some milliseconds after each of its operations, and a thread that shares its core with one of them takes fewer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch


def run_all(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run tasks side by side and return their results in order.

    After an error, or an interrupt, which Python raises in the main thread, no further task begins.
    """
    threads = min(torch.get_num_threads(), len(tasks))
    if threads <= 1:
        return [task() for task in tasks]
    results: list[Any] = [None] * len(tasks)
    waiting = iter(range(len(tasks)))  # its `next` is atomic, so that no task is taken twice

    def take() -> None:
        for k in waiting:
            results[k] = tasks[k]()

    helpers = [_pool(os.getpid(), threads - 1).submit(take) for _ in range(threads - 1)]
    try:
        take()
    finally:
        for _ in waiting:
            pass
        failures = [helper.exception() for helper in helpers if not helper.cancel()]
    for failure in failures:
        if failure is not None:
            raise failure
    return results


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return the pool of a process; a forked one does not inherit threads.

    Threads inherit the setting of denormal numbers; kernels that compare labels need them.
    """
    return ThreadPoolExecutor(
        threads, thread_name_prefix="segcal", initializer=torch.set_flush_denormal, initargs=(False,)
    )
