"""Run the stages of jobs, one after another or in several processes.

In a module of its own, because processes that are spawned import what they run, and cannot import a `__main__`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from experiments.camvid.calibrate import calibrate, study
from experiments.camvid.jobs import Job, Recipe
from experiments.camvid.network import check_recipe, predict, train_network
from experiments.camvid.protocols import Protocol
from experiments.command import given
from experiments.datasets.camvid import CamVid, Split, open_camvid
from experiments.processes import work_on


class Place(NamedTuple):
    """One job, its data, its folder and its recipe."""

    job: Job
    data: CamVid
    out: Path
    recipe: Recipe


def run_jobs(options: argparse.Namespace, recipe: Recipe) -> None:
    """Run the stages of every job, several trainings, and then several protocols of all networks, at once."""
    places, stage = partial(_places, options, recipe), options.stage
    for job, _, out, _ in places():
        check_recipe(job, out, recipe)
    once = [(options,)]
    if stage in ("run", "train"):
        work_on(places, lambda _: once, _train, processes=options.processes)
    if stage in ("run", "calibrate"):
        work_on(places, lambda _: once, _predict, processes=options.processes)
        protocols = [(options, protocol) for protocol in options.protocol]
        work_on(places, lambda _: protocols, _calibrate, processes=options.processes)
    if stage == "study":
        work_on(places, lambda _: once, _study, processes=options.processes)


def _places(options: argparse.Namespace, recipe: Recipe) -> Sequence[Place]:
    splits: tuple[Split, ...] = ("train", "val", "test") if options.stage in ("run", "train") else ("val", "test")
    data = open_camvid(given(options.data, "--data"), splits)
    if recipe.frames is None:
        data.require_published()
    jobs = [Job(options.network, loss, seed) for seed in options.seed for loss in options.loss]
    return [Place(job, data, Path(options.out), recipe) for job in jobs]


def _train(place: Place, options: argparse.Namespace) -> None:
    train_network(*place, device=options.device, minutes=options.minutes, compiled=options.compiled)


def _predict(place: Place, options: argparse.Namespace) -> None:
    predict(*place, device=options.device)


def _calibrate(place: Place, options: argparse.Namespace, protocol: Protocol) -> None:
    calibrate(*place, protocol, device=options.device)


def _study(place: Place, options: argparse.Namespace) -> None:
    study(*place, device=options.device)
