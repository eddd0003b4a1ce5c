"""Run from the repository's root: `python -m experiments.camvid run --data CamVid --out results/camvid`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from experiments.archive import pack, unpack
from experiments.camvid.jobs import LOSSES, PRESETS, Recipe
from experiments.camvid.network import OutOfTimeError
from experiments.camvid.protocols import PROTOCOLS
from experiments.camvid.running import run_jobs
from experiments.camvid.table import tables
from experiments.command import parser_of, show, status_of
from experiments.datasets.camvid import ValidationFrames
from experiments.fitting import NAMES
from segcal.statistics import TESTS

_STAGES = ("run", "train", "calibrate", "table", "study", "archive", "unpack")
_MEASURED = Path(__file__).with_name("measured")
_OVERRIDES = {
    "epochs": int,
    "full_epochs": int,
    "crop": int,
    "colour": float,
    "batch_size": int,
    "learning_rate": float,
    "weight_decay": float,
    "average": float,
}


def main(arguments: list[str] | None = None) -> int:
    """Do the stages asked for; what is done already is not done again."""
    options = _parser().parse_args(arguments)
    try:
        return status_of(lambda: _run(options))
    except OutOfTimeError as stop:
        print(stop)
        return 3


def _run(options: argparse.Namespace) -> None:
    out = Path(options.out)
    if options.stage == "table":
        show(tables(out, options.test), out)
    elif options.stage == "archive":
        for folder in sorted(path.parent for path in out.glob("*/training.json")):
            pack(folder, options.archives / f"{folder.name}.zip")
    elif options.stage == "unpack":
        for archive in sorted(options.archives.glob("*.zip")):
            unpack(archive, out / archive.stem)
    else:
        run_jobs(options, _recipe(options))


def _recipe(options: argparse.Namespace) -> Recipe:
    asked = {name: getattr(options, name) for name in (*_OVERRIDES, "validation_frames", "scales", "methods")}
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in asked.items() if value is not None
    }
    return replace(PRESETS[options.preset], **given)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("camvid", __doc__)
    parser.add_argument("stage", choices=_STAGES, help="run: train, then calibrate; archive, unpack: the measurements")
    parser.add_argument("--data", type=Path, help="folder with train, trainannot, val, valannot, test and testannot")
    parser.add_argument("--out", required=True, help="folder of the results; each job has one of its own in it")
    parser.add_argument("--network", choices=("56", "67", "103", "tiny"), default="103", help="layers of FC-DenseNet")
    parser.add_argument("--loss", choices=tuple(LOSSES), nargs="+", default=["ce"])
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--protocol", choices=PROTOCOLS, nargs="+", default=list(PROTOCOLS))
    parser.add_argument("--methods", choices=tuple(NAMES), nargs="+", help="only these of the table, beside ts and lts")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="full")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--processes", type=int, default=1, help="jobs, or protocols of them, at the same time")
    parser.add_argument("--test", choices=tuple(TESTS), default="wilcoxon", help="table: test of significance")
    parser.add_argument(
        "--archives", type=Path, default=_MEASURED, help="folder of the archives: by default the published"
    )
    parser.add_argument("--minutes", type=float, help="stop training at the next checkpoint after this time")
    parser.add_argument("--compiled", action="store_true", help="on a GPU: train a compiled network")
    for name, kind in _OVERRIDES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help="instead of the preset's")
    parser.add_argument(
        "--validation-frames",
        choices=get_args(ValidationFrames),
        help="frames of val that choose the epoch: every ninth (spread), or the last 11 as in the released scripts",
    )
    parser.add_argument("--scales", type=float, nargs=2, metavar=("LOW", "HIGH"), help="instead of the preset's")
    return parser


if __name__ == "__main__":
    sys.exit(main())
