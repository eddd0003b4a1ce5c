"""Cases to fit on and cases to measure: five random splits of each set of scores.

- `voc`: half of the images to fit on, the others to measure.
- `camvid`: four fifths of the blocks of time of `val`, one video, to fit on; all of `test`, which are two other videos.
- `camvid-VIDEO`: half of the blocks of time of one video of `test` to fit on, the other half to measure.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.camvid.jobs import Job
from experiments.camvid.network import read_logits
from experiments.datasets.camvid import BLOCKS, CLASSES, VOID, CamVid, Split, open_camvid, sequence_of, time_groups
from experiments.datasets.coarse import open_coarse
from experiments.datasets.splits import shuffled_parts
from experiments.datasets.voc import BACKGROUND
from experiments.datasets.voc import CLASSES as VOC_CLASSES
from experiments.datasets.voc import VOID as VOC_VOID
from segcal.types import Case, InputError

VIDEOS = ("0001TP", "Seq05VD")


@dataclass(frozen=True)
class Task:
    """Cases to fit on and cases to measure in one split."""

    data: str
    number: int
    fit: Sequence[Case]
    """In random order: the first n of them are what a fit on n images gets."""
    test: Sequence[Case]
    about: dict[str, Any]
    """Classes, labels left out and background."""

    def part_of(self, case: str) -> str:
        """Return the part of the data that a measured case belongs to: its video, where there are several."""
        return f"camvid, {sequence_of(case)}" if self.data == "camvid" else self.data


def chosen_tasks(options: argparse.Namespace) -> list[Task]:
    """Return the tasks of the data that were asked for, split by split."""
    return [task for task in _tasks(options) if not options.data or task.data in options.data]


def _tasks(options: argparse.Namespace) -> Iterator[Task]:
    if options.voc is not None:
        yield from voc_tasks(options.voc, options.splits)
    if options.camvid is not None:
        if options.logits is None:
            raise InputError("give the folder of a job of experiments.camvid, which holds its logits, with --logits")
        yield from camvid_tasks(options.camvid, options.logits, options.splits)


def voc_tasks(root: Path, count: int) -> Iterator[Task]:
    """Yield splits of images and scores that are coarser than their labels; all are held in memory."""
    about = {"num_classes": len(VOC_CLASSES), "ignore_index": VOC_VOID, "background": BACKGROUND}
    cases = {case.name: case for case in open_coarse(root)}
    for number in range(count):
        fit, test = shuffled_parts(list(cases), (len(cases) // 2, len(cases) - len(cases) // 2), seed=number)
        yield Task("voc", number, [cases[name] for name in fit], [cases[name] for name in test], about)


def camvid_tasks(root: Path, logits: Path, count: int) -> Iterator[Task]:
    """Yield splits of CamVid's frames and the logits of one job of `experiments.camvid`, whose folder is given."""
    about = {"num_classes": len(CLASSES), "ignore_index": VOID, "background": None}
    data, job = open_camvid(root), Job.of(logits.name)
    val, test = (_held(data, job, logits.parent, split) for split in ("val", "test"))
    for number in range(count):
        yield Task("camvid", number, drawn_blocks(val, 0.8, number), test, about)
        for video in VIDEOS:
            yield Task(f"camvid-{video}", number, *halves(of_video(test, video), number), about)


def _held(data: CamVid, job: Job, out: Path, split: Split) -> list[Case]:
    """The frames of a split with the logits of a job, in memory; groups are blocks of time."""
    groups = time_groups(list(data.files[split]), BLOCKS)
    return [
        replace(data.read(split, name).case(read_logits(job, out, split, name)), group=group)
        for name, group in groups.items()
    ]


def of_video(cases: Sequence[Case], video: str) -> list[Case]:
    """Return the frames of a video; raise if there are none."""
    own = [case for case in cases if sequence_of(case.name) == video]
    if not own:
        raise InputError(f"the frames of test must hold the video {video}, got none")
    return own


def halves(cases: Sequence[Case], seed: int) -> tuple[list[Case], list[Case]]:
    """Return the frames of half of the blocks of time, drawn at random, and the others."""
    fit = drawn_blocks(cases, 0.5, seed)
    groups = {case.group for case in fit}
    return fit, [case for case in cases if case.group not in groups]


def drawn_blocks(cases: Sequence[Case], share: float, seed: int) -> list[Case]:
    """The cases of a share of the blocks of time, drawn at random, in random order."""
    blocks = sorted({case.group or "" for case in cases})
    (kept,) = shuffled_parts(blocks, (max(1, round(share * len(blocks))),), seed=seed)
    own = {case.name: case for case in cases if case.group in kept}
    (order,) = shuffled_parts(list(own), (len(own),), seed=seed)
    return [own[name] for name in order]
