"""Run from the repository's root; what is predicted or measured is not done again.

python -m experiments.passes predict --weights WEIGHTS --camvid CamVid --prepared prepared --out results/passes
python -m experiments.passes measure --camvid CamVid --prepared prepared --out results/passes --processes 8
python -m experiments.passes table --out results/passes
python -m experiments.passes table        # from the published measurements
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.passes.predict import predict_camvid, predict_volumes
from experiments.passes.processes import measure_in_processes, volume_jobs
from experiments.passes.table import pack, print_tables
from segcal.types import InputError

_VOLUMES = ("hippocampus-200", "mouse", "hippocampus-mirrored")


def main(arguments: list[str] | None = None) -> int:
    """Do the stage asked for."""
    options = _parser().parse_args(arguments)
    try:
        if options.stage == "table":
            print_tables(options.out)
        elif options.out is None:
            raise InputError("give the folder of the results with --out")
        elif options.stage == "archive":
            pack(options.out)
        elif options.stage == "predict":
            _predict(options)
        else:
            measure_in_processes(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _predict(options: argparse.Namespace) -> None:
    if options.camvid is not None:
        for path in sorted(options.weights.glob("fc-densenet*-ce-*")):
            predict_camvid(path, options.camvid, options.out, options.device, options.every)
    for job in volume_jobs(options):
        predict_volumes(job, options.weights, options.prepared, options.out, options.device, options.fold)


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m experiments.passes", description=__doc__, formatter_class=raw)
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
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="auto")
    return parser


if __name__ == "__main__":
    sys.exit(main())
