"""Run from the repository's root; what is predicted or measured is not done again.

python -m experiments.passes predict --weights WEIGHTS --camvid CamVid --prepared prepared --out results/passes
python -m experiments.passes measure --camvid CamVid --prepared prepared --out results/passes --processes 8
python -m experiments.passes table --out results/passes
python -m experiments.passes table        # from the published measurements
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import pandas as pd

from experiments.command import given, parser_of, show, status_of
from experiments.passes.measure import gathered, measure
from experiments.passes.predict import networks_of, predict
from experiments.passes.table import COLUMNS, MEASURED, tables
from experiments.passes.tasks import Task, chosen_tasks
from experiments.processes import work_on
from experiments.rows import pack_rows, unpack_rows

_VOLUMES = ("hippocampus-200", "mouse", "hippocampus-mirrored")


def main(arguments: list[str] | None = None) -> int:
    """Do the stage asked for."""
    options = _parser().parse_args(arguments)
    return status_of(lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    if options.stage == "table":
        show(tables(unpack_rows(MEASURED) if options.out is None else gathered(options.out)), options.out)
    elif options.stage == "archive":
        _archive(given(options.out, "--out"))
    elif options.stage == "predict":
        given(options.out, "--out"), given(options.weights, "--weights")
        work_on(partial(networks_of, options), lambda _: [(options,)], predict, processes=options.processes)
    else:
        _measure(given(options.out, "--out"), options)


def _archive(out: Path) -> None:
    """Keep what the tables are made from beside the experiment; other tasks stay as they are."""
    known, own = unpack_rows(MEASURED), gathered(out)
    pack_rows(pd.concat([known[~known["part"].isin(own["part"])], own[known.columns]]), MEASURED, COLUMNS)


def _measure(out: Path, options: argparse.Namespace) -> None:
    def items(task: Task) -> list[tuple[str, Path, str]]:
        rows = [name for name in task.rows if not options.methods or name in options.methods]
        return [(name, out, options.device) for name in rows[::-1]]  # those with most passes take longest

    work_on(partial(chosen_tasks, options), items, measure, processes=options.processes)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("passes", __doc__)
    parser.add_argument("stage", choices=("predict", "measure", "table", "archive"))
    parser.add_argument("--out", type=Path, help="folder of the results; without it, `table` prints the published ones")
    parser.add_argument(
        "--weights", type=Path, help="folder of networks: JOB.safetensors, PRESET-seedN_fold-K.safetensors"
    )
    parser.add_argument("--camvid", type=Path, help="folder of CamVid's frames")
    parser.add_argument("--prepared", type=Path, help="folder of the volumes that experiments.lpba40 prepared")
    parser.add_argument("--preset", nargs="+", choices=_VOLUMES, default=_VOLUMES[:2])
    parser.add_argument("--seed", type=int, nargs="+", default=[0, 1], help="seeds of the networks of volumes")
    parser.add_argument("--fold", type=int, nargs="+", default=[0, 1], help="only these networks of volumes")
    parser.add_argument("--small", action="store_true", help="the small form of experiments.lpba40")
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="use only each of this number of CamVid's frames in a row")
    parser.add_argument("--methods", nargs="+", help="only these rows")
    parser.add_argument("--processes", type=int, default=2, help="networks, or fits, at the same time")
    parser.add_argument("--device", default="auto")
    return parser


if __name__ == "__main__":
    sys.exit(main())
