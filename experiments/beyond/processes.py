"""The tasks that the options ask for, and several fits and measurements at the same time."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from experiments.beyond.measure import measure
from experiments.beyond.methods import Training
from experiments.beyond.splits import Task, camvid_tasks, voc_tasks
from segcal.types import InputError

_opened: list[Task] = []  # of a process of the pool


def chosen_tasks(options: argparse.Namespace) -> list[Task]:
    """Return the tasks of the data that were asked for, split by split."""
    return [task for task in _tasks(options) if not options.data or task.data in options.data]


def measure_in_processes(
    options: argparse.Namespace, items: Sequence[tuple[int, int, str]], training: Training
) -> None:
    """Measure each item in one of several processes."""
    # spawned, since neither CUDA nor the threads of PyTorch survive a fork
    with ProcessPoolExecutor(options.processes, get_context("spawn"), _open, (options,)) as pool:
        for done in [pool.submit(_measure, *item, options.out, training) for item in items]:
            done.result()


def _open(options: argparse.Namespace) -> None:
    _opened[:] = chosen_tasks(options)


def _measure(place: int, images: int, method: str, out: Path, training: Training) -> None:
    measure(_opened[place], images, method, out, training)


def _tasks(options: argparse.Namespace) -> Iterator[Task]:
    if options.voc is not None:
        yield from voc_tasks(options.voc, options.splits)
    if options.camvid is not None:
        if options.logits is None:
            raise InputError("give the folder of a job of experiments.camvid, which holds its logits, with --logits")
        yield from camvid_tasks(options.camvid, options.logits, options.splits)
