"""Run from the repository's root; results accumulate, and what is measured is not measured again.

python -m experiments.beyond run --voc DATA/voc --out results/beyond
python -m experiments.beyond run --camvid CamVid --logits results/camvid/fc-densenet103-ce-0 --out results/beyond
python -m experiments.beyond table --out results/beyond
python -m experiments.beyond table        # from the published measurements
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import pandas as pd

from experiments.beyond.measure import measure
from experiments.beyond.methods import METHODS, TRAINED, Training
from experiments.beyond.splits import Task, chosen_tasks
from experiments.beyond.table import COLUMNS, MEASURED, gathered, tables
from experiments.command import given, parser_of, show, status_of
from experiments.processes import work_on
from experiments.rows import pack_rows, unpack_rows
from segcal.types import InputError

SIZES = (2, 5, 10, 25, 50)


def main(arguments: list[str] | None = None) -> int:
    """Do the stage asked for."""
    options = _parser().parse_args(arguments)
    return status_of(lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    if options.stage == "table":
        show(tables(unpack_rows(MEASURED) if options.out is None else gathered(options.out)), options.out)
    elif options.stage == "archive":
        _archive(given(options.out, "--out"))
    else:
        _measure(given(options.out, "--out"), options)


def _archive(out: Path) -> None:
    """Keep what the tables are made from beside the experiment; what was not measured again stays as it is."""
    known, own, item = unpack_rows(MEASURED), gathered(out), ["part", "split", "images", "method"]
    again = pd.MultiIndex.from_frame(known[item]).isin(pd.MultiIndex.from_frame(own[item]))
    pack_rows(pd.concat([known[~again], own[known.columns]]), MEASURED, COLUMNS)


def _measure(out: Path, options: argparse.Namespace) -> None:
    if options.voc is None and options.camvid is None:
        raise InputError("give the folder of VOC's scores with --voc or that of CamVid with --camvid")
    training = Training(options.epochs, options.crop, options.device)
    longest = (*TRAINED, "auto")
    order = sorted(options.methods, key=lambda method: method not in longest)  # which are begun first

    def items(task: Task) -> list[tuple[int, str, Path, Training]]:
        sizes = {min(size, len(task.fit)) for size in (*options.sizes, len(task.fit))}
        return [(size, method, out, training) for size in sorted(sizes, reverse=True) for method in order]

    work_on(partial(chosen_tasks, options), items, measure, processes=options.processes)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("beyond", __doc__)
    parser.add_argument("stage", choices=("run", "table", "archive"))
    parser.add_argument("--out", type=Path, help="folder of the results; without it, `table` prints the published ones")
    parser.add_argument("--voc", type=Path, help="folder that holds logits, labels and images")
    parser.add_argument("--camvid", type=Path, help="folder of CamVid's frames")
    parser.add_argument("--logits", type=Path, help="folder of a job of experiments.camvid")
    parser.add_argument("--data", nargs="+", help="only these: voc, camvid, camvid-0001TP, camvid-Seq05VD")
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=tuple(METHODS))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES), help="images to fit on, beside all")
    parser.add_argument("--epochs", type=int, help="of LTS; 200 by default")
    parser.add_argument("--crop", type=int, help="train LTS on random crops of this side")
    parser.add_argument("--device", default=Training.device)
    parser.add_argument("--processes", type=int, default=1, help="fits and measurements at the same time")
    return parser


if __name__ == "__main__":
    sys.exit(main())
