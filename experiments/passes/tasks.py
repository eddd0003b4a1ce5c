"""Cases with their passes, to fit on and to measure, for every network and split."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.beyond.splits import VIDEOS, drawn_blocks, halves, of_video
from experiments.datasets.camvid import BLOCKS, CLASSES, VOID, open_camvid, time_groups
from experiments.lpba40.prepared import PreparedFolder
from experiments.lpba40.recipes import Job
from experiments.passes.predict import predicted, volume_jobs
from experiments.passes.sets import MEAN_ROWS, OTHERS, SETS, methods
from experiments.passes.views import ORIGINAL
from segcal.types import Array, Case


@dataclass(frozen=True)
class Task:
    """Cases of one network in one split, without passes.

    Attributes:
        data: Name of the task.
        number: Number of the network and split.
        logits: Folder of the logits of the network, a folder for each view.
        others: Folders of the other networks.
        fit: Cases to fit on.
        test: Cases to measure.
        about: Classes, labels left out and background.
        single: Cases to fit on with the scores of the first pass alone, where the others have the mean of all mirrors.
    """

    data: str
    number: int
    logits: Path
    others: tuple[Path, ...]
    fit: Sequence[Case]
    test: Sequence[Case]
    about: Mapping[str, Any]
    single: Sequence[Case] = ()

    @property
    def rows(self) -> tuple[str, ...]:
        """Rows of its table."""
        return MEAN_ROWS if self.single else methods(self.fit[0].logits.ndim - 1)

    def with_passes(self, cases: Sequence[Case], views: Sequence[str]) -> list[Case]:
        """Return cases with the passes of a set; none for an empty one."""
        return [replace(case, passes=list(self._passes(case.name, views)) or None) for case in cases]

    def _passes(self, name: str, views: Sequence[str]) -> Iterator[Array]:
        for view in views:
            if view == OTHERS:
                yield from (_read(folder, ORIGINAL, name) for folder in self.others)
            else:
                yield _read(self.logits, view, name)


def chosen_tasks(options: argparse.Namespace) -> list[Task]:
    """Return the tasks of every network whose logits are there; the logits stay on disk."""
    found = list[Task]()
    if options.camvid is not None:
        found += camvid_tasks(options.out, options.camvid, options.splits, options.every)
    for job in volume_jobs(options):
        found += volume_tasks(options.out, job, options.prepared, options.fold)
    return found


def camvid_tasks(out: Path, data: Path, splits: int, every: int = 1) -> Iterator[Task]:
    """Yield, for every network, the tasks of `experiments.beyond`: `val` to `test`, and within each video of `test`."""
    camvid, about = (
        open_camvid(data, ("val", "test")),
        {"num_classes": len(CLASSES), "ignore_index": VOID, "background": None},
    )
    seeds = list(predicted(out, "camvid"))
    for place, seed in enumerate(seeds):
        folder, *others = (out / "camvid" / str(other) for other in (seed, *(k for k in seeds if k != seed)))
        val, test = (
            [
                replace(camvid.read(split, name).case(_read(folder, ORIGINAL, name)), group=group, image=None)
                for name, group in time_groups(camvid.names(split)[::every], BLOCKS).items()
            ]
            for split in ("val", "test")
        )
        for split in range(splits):
            number, drawn = place * splits + split, drawn_blocks(val, 0.8, split)
            shared = (number, folder, tuple(others))
            for video in VIDEOS:
                own = of_video(test, video)
                yield Task(f"camvid, {video}", *shared, drawn, own, about)
                yield Task(f"camvid-{video}", *shared, *halves(own, split), about)


def volume_tasks(out: Path, job: Job, prepared: Path, folds: Sequence[int] = (0, 1)) -> Iterator[Task]:
    """Yield the halves of the test volumes of the networks of a job: each is fitted on once, and measured once.

    Where networks were trained with flips, the mean of the logits of all mirrors is a further task: what nnU-Net
    predicts.
    """
    data = PreparedFolder(prepared, job.recipe.data)
    about = {"num_classes": len(data.classes), "background": 0}
    folder, *others = (
        out / job.preset / str(seed) for seed in sorted(predicted(out, job.preset), key=lambda seed: seed != job.seed)
    )
    split = job.split(data.names)
    for fold in folds:
        for half, parts in enumerate(split[fold].calibration):
            number = 4 * job.seed + 2 * fold + half
            fit, test = ([_volume(data, folder, name) for name in names] for names in (parts.fit, parts.test))
            yield Task(job.preset, number, folder, tuple(others), fit, test, about)
            if job.recipe.flips:
                views = (ORIGINAL, *SETS[3]["7 mirrors"])
                mean, apart = (
                    [_volume(data, folder, name, views) for name in names] for names in (parts.fit, parts.test)
                )
                yield Task(f"{job.preset}-mean", number, folder, (), mean, apart, about, single=fit)


def _volume(data: PreparedFolder, folder: Path, name: str, views: Sequence[str] = (ORIGINAL,)) -> Case:
    """Return a volume with the logits of a view, or with the mean logits of several."""
    volume = data.read(name)
    logits = [_read(folder, view, name) for view in views]
    scores = logits[0] if len(logits) == 1 else np.stack(logits).mean(axis=0, dtype=np.float32)
    return Case(name, scores, volume.labels, spacing=volume.spacing)


def _read(folder: Path, view: str, name: str) -> Array:
    logits: Array = np.load(folder / view / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    return logits
