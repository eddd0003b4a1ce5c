"""Run the stages of networks and methods, one after another or in several processes.

In a module of its own, because processes that are spawned import what they run, and cannot import a `__main__`.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import as_completed
from dataclasses import asdict
from itertools import product
from pathlib import Path

from experiments.command import given
from experiments.datasets.splits import NestedFold
from experiments.lpba40.calibrate import calibrate
from experiments.lpba40.network import predict, train_network
from experiments.lpba40.prepared import PreparedFolder
from experiments.lpba40.recipes import Job
from experiments.processes import spawned
from segcal.files import read_json, staged_file, write_json
from segcal.types import InputError

_SPLIT = "splits.json"


def run_networks(options: argparse.Namespace) -> None:
    """Run the stages of every network that was asked for, several networks or methods at once with --processes."""
    jobs = [Job(preset, seed, options.small) for preset in options.preset for seed in options.seed]
    splits = {job: _split(job, options) for job in jobs}
    folds = {(job, k): fold for job in jobs for k, fold in enumerate(splits[job]) if k in (options.fold or (k,))}
    if options.processes == 1:
        for (job, fold), nested in folds.items():
            _run_network(options, job, fold)
            for half, method in product(range(len(nested.calibration)), _methods(options)):
                _run_method(options, job, fold, half, method)
        return
    with spawned(options.processes) as pool:
        networks = {pool.submit(_run_network, options, *place): place for place in folds}
        measured = []
        for network in as_completed(networks):
            network.result()
            place = networks[network]
            halves = range(len(folds[place].calibration))
            # the last methods take longest: begun first, they do not keep one process busy when all others are done
            for method, half in product(reversed(_methods(options)), halves):
                measured.append(pool.submit(_run_method, options, *place, half, method))
        for done in measured:
            done.result()


def _split(job: Job, options: argparse.Namespace) -> tuple[NestedFold, ...]:
    """Return the split of a job, which is written beside its results, or is the one that they were made with."""
    path = given(options.out, "--out") / job.name / _SPLIT
    split = job.split(_data(job, options).names)
    content = [asdict(fold) for fold in split]
    if not path.exists():
        with staged_file(path) as file:
            write_json(file, content)
    elif read_json(path) != json.loads(json.dumps(content)):
        raise InputError(f"'{path}' holds another split of these volumes; give another --out")
    return split


def _methods(options: argparse.Namespace) -> list[str]:
    return list(options.methods) if options.stage in ("run", "calibrate") else []


def _run_network(options: argparse.Namespace, job: Job, fold: int) -> None:
    """Train one network and predict with it."""
    out, data, nested = options.out, _data(job, options), _split(job, options)[fold]
    if options.stage in ("run", "train"):
        train_network(job, fold, nested.network, data, out, _scratch(options), options.device)
    if options.stage in ("run", "predict"):
        predict(job, fold, nested.network, data, _scratch(options), options.device)


def _run_method(options: argparse.Namespace, job: Job, fold: int, half: int, method: str) -> None:
    """Fit and measure one method on the logits of a network."""
    data, nested, out = _data(job, options), _split(job, options)[fold], options.out
    calibrate(job, fold, nested, data, out, _scratch(options), half=half, method=method, device=options.device)


def _scratch(options: argparse.Namespace) -> Path:
    folder: Path = options.scratch or options.out / "scratch"
    return folder


def _data(job: Job, options: argparse.Namespace) -> PreparedFolder:
    return PreparedFolder(given(options.prepared, "--prepared"), job.recipe.data)
