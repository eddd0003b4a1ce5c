"""Fits and measurements in several processes, each of which opens the tasks itself: logits stay on disk."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import torch

from experiments.lpba40.recipes import Job
from experiments.passes.measure import measure
from experiments.passes.tasks import Task, camvid_tasks, volume_tasks

_opened: list[Task] = []  # of a process of the pool


def measure_in_processes(options: argparse.Namespace) -> None:
    """Measure every method that was asked for on every task."""
    if options.processes == 1:
        for task in _tasks(options):
            for name in _rows(options, task):
                measure(task, name, options.out)
        return
    items = [(place, name) for place, task in enumerate(_tasks(options)) for name in _rows(options, task)]
    # spawned, since neither CUDA nor the threads of PyTorch survive a fork
    with ProcessPoolExecutor(options.processes, get_context("spawn"), _open, (options,)) as pool:
        for done in as_completed([pool.submit(_measure, *item, options.out) for item in items]):
            done.result()


def _rows(options: argparse.Namespace, task: Task) -> list[str]:
    return [name for name in task.rows if not options.methods or name in options.methods]


def _open(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    _opened[:] = _tasks(options)


def _measure(place: int, name: str, out: Path) -> None:
    measure(_opened[place], name, out)


def _tasks(options: argparse.Namespace) -> Iterator[Task]:
    if options.camvid is not None:
        yield from camvid_tasks(options.out, options.camvid, options.splits, options.every)
    for job in volume_jobs(options):
        yield from volume_tasks(options.out, job, options.prepared, options.fold)


def volume_jobs(options: argparse.Namespace) -> list[Job]:
    """Return the jobs of `experiments.lpba40` that were asked for."""
    presets = options.preset if options.prepared is not None else ()
    return [Job(preset, seed, options.small) for preset in presets for seed in options.seed]
