"""Run the stages of networks and methods, one after another or in several processes.

In a module of its own, because processes that are spawned import what they run, and cannot import a `__main__`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

from experiments.command import given
from experiments.datasets.splits import NestedFold
from experiments.lpba40.calibrate import calibrate
from experiments.lpba40.network import predict, train_network
from experiments.lpba40.prepared import PreparedFolder
from experiments.lpba40.recipes import Job
from experiments.processes import work_on
from segcal.files import read_json, staged_file, write_json
from segcal.types import InputError

_SPLIT = "splits.json"


class Place(NamedTuple):
    """One network: a fold of a job, its split and the volumes."""

    job: Job
    fold: int
    nested: NestedFold
    data: PreparedFolder


def run_networks(options: argparse.Namespace) -> None:
    """Run the stages of every network that was asked for, several networks, and then methods, at once."""
    places = partial(_places, options)
    if options.stage != "calibrate":
        work_on(places, lambda _: [(options,)], _run_network, processes=options.processes)
    if options.stage in ("run", "calibrate"):
        # the last methods take longest: begun first, they do not keep one process busy when all others are done
        order = options.methods if options.processes == 1 else options.methods[::-1]
        work_on(
            places,
            lambda place: [(options, half, name) for name in order for half in range(len(place.nested.calibration))],
            _run_method,
            processes=options.processes,
        )


def _places(options: argparse.Namespace) -> list[Place]:
    return list(_opened(options))


def _opened(options: argparse.Namespace) -> Iterator[Place]:
    """Yield the networks; the split of a job is written beside its results, or is the one they were made with."""
    for job in (Job(preset, seed, options.small) for preset in options.preset for seed in options.seed):
        data = PreparedFolder(given(options.prepared, "--prepared"), job.recipe.data)
        path = given(options.out, "--out") / job.name / _SPLIT
        split = job.split(data.names)
        content = [asdict(fold) for fold in split]
        if not path.exists():
            with staged_file(path) as file:
                write_json(file, content)
        elif read_json(path) != json.loads(json.dumps(content)):
            raise InputError(f"'{path}' holds another split of these volumes; give another --out")
        yield from (Place(job, k, fold, data) for k, fold in enumerate(split) if k in (options.fold or (k,)))


def _run_network(place: Place, options: argparse.Namespace) -> None:
    """Train one network and predict with it."""
    job, fold, nested, data = place
    if options.stage in ("run", "train"):
        train_network(job, fold, nested.network, data, options.out, _scratch(options), options.device)
    if options.stage in ("run", "predict"):
        predict(job, fold, nested.network, data, _scratch(options), options.device)


def _run_method(place: Place, options: argparse.Namespace, half: int, method: str) -> None:
    """Fit and measure one method on the logits of a network."""
    job, fold, nested, data = place
    out, scratch = options.out, _scratch(options)
    calibrate(job, fold, nested, data, out, scratch, half=half, method=method, device=options.device)


def _scratch(options: argparse.Namespace) -> Path:
    folder: Path = options.scratch or options.out / "scratch"
    return folder
