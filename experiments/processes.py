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
_FREE = [name for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS") if name not in os.environ]


def spawned(count: int, open_tasks: Callable[[], Sequence[Any]] = tuple) -> ProcessPoolExecutor:
    """Return processes, each of which opens the tasks itself.

    They are spawned, since neither CUDA nor the threads of PyTorch survive a fork. Libraries of linear algebra read the
    number of their threads from the environment when they are loaded.
    """
    threads = max(1, (os.cpu_count() or 1) // count)
    os.environ.update(dict.fromkeys(_FREE, str(threads)))
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
        items_of: The items of a task. Several processes begin with the first items of all tasks: put those that take
            longest first, so that none is left alone at the end.
        work: What to do.
        processes: How many items are worked on at the same time.
    """
    tasks = open_tasks()
    if processes == 1:
        for task in tasks:
            for item in items_of(task):
                work(task, *item)
        return
    ranked = [(rank, place, item) for place, task in enumerate(tasks) for rank, item in enumerate(items_of(task))]
    items = [(place, item) for _, place, item in sorted(ranked, key=lambda each: each[:2])]
    if not items:
        return
    with spawned(min(processes, len(items)), open_tasks) as pool:
        for done in as_completed([pool.submit(_work, work, *each) for each in items]):
            done.result()


def _start(threads: int, open_tasks: Callable[[], Sequence[Any]]) -> None:
    torch.set_num_threads(threads)
    _opened[:] = open_tasks()


def _work(work: Callable[..., None], place: int, item: tuple[Any, ...]) -> None:
    work(_opened[place], *item)
