"""Work on several tasks side by side, in processes that share the cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

_T = TypeVar("_T")
_opened: list[Any] = []  # tasks of a process of the pool


def spawned(count: int, open_tasks: Callable[[], Sequence[Any]] = tuple) -> ProcessPoolExecutor:
    """Return processes, each of which opens the tasks itself.

    They are spawned, since neither CUDA nor the threads of PyTorch survive a fork.
    """
    threads = max(1, (os.cpu_count() or 1) // count)
    return ProcessPoolExecutor(count, get_context("spawn"), _start, (threads, open_tasks))


def work_on(
    open_tasks: Callable[[], Sequence[_T]],
    items_of: Callable[[_T], Iterable[tuple[Any, ...]]],
    work: Callable[..., None],
    *,
    processes: int,
) -> None:
    """Call `work(task, *item)` for every item of every task.

    Args:
        open_tasks: Opens the tasks; processes import it, as they import `work`.
        items_of: The items of a task.
        work: What to do.
        processes: How many items are worked on at the same time.
    """
    tasks = open_tasks()
    if processes == 1:
        for task in tasks:
            for item in items_of(task):
                work(task, *item)
        return
    items = [(place, item) for place, task in enumerate(tasks) for item in items_of(task)]
    with spawned(processes, open_tasks) as pool:
        for done in as_completed([pool.submit(_work, work, *each) for each in items]):
            done.result()


def _start(threads: int, open_tasks: Callable[[], Sequence[Any]]) -> None:
    torch.set_num_threads(threads)
    _opened[:] = open_tasks()


def _work(work: Callable[..., None], place: int, item: tuple[Any, ...]) -> None:
    work(_opened[place], *item)
