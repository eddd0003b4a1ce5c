"""The paper's U-Net experiment; what is done already is not done again. Run from the repository's root.

python -m experiments.lpba40 prepare --preset hippocampus --data Task04_Hippocampus --prepared prepared
python -m experiments.lpba40 run --preset hippocampus --seed 0 1 --prepared prepared --out results/lpba40
python -m experiments.lpba40 table --out results/lpba40
python -m experiments.lpba40 table        # from the published measurements
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.command import given, parser_of, show, status_of
from experiments.lpba40.calibrate import METHODS
from experiments.lpba40.gathered import MEASURED, gather, pack, unpack
from experiments.lpba40.recipes import PRESETS
from experiments.lpba40.running import run_networks
from experiments.lpba40.table import tables
from segcal.statistics import TESTS

_STAGES = ("prepare", "run", "train", "predict", "calibrate", "table", "archive")


def main(arguments: list[str] | None = None) -> int:
    """Run a stage; return the exit status."""
    options = _parser().parse_args(arguments)
    return status_of(lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    if options.stage == "table":
        done = unpack(MEASURED) if options.out is None else gather(options.out)
        show(tables(done, options.test), options.out)
    elif options.stage == "archive":
        for measured in gather(given(options.out, "--out")):
            pack(measured, MEASURED / f"{measured.job.name}.zip")
    elif options.stage == "prepare":
        from experiments.lpba40.prepare import prepare  # noqa: PLC0415  (no other stage needs its readers)

        for preset in options.preset:
            data, prepared = given(options.data, "--data"), given(options.prepared, "--prepared")
            prepare(PRESETS[preset].data, data, prepared, template=options.template)
    else:
        run_networks(options)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("lpba40", __doc__)
    parser.add_argument(
        "stage",
        choices=_STAGES,
        help="run: train, predict and calibrate; archive: keep what tables need beside this file",
    )
    parser.add_argument("--preset", nargs="+", choices=tuple(PRESETS), default=["hippocampus"])
    parser.add_argument("--small", action="store_true", help="few volumes, a tiny network and few epochs, for a CPU")
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--fold", type=int, nargs="+", help="only these networks, 0 or 1")
    parser.add_argument("--data", type=Path, help="prepare: folder of the data set")
    parser.add_argument("--template", type=Path, help="prepare lpba40: skull-stripped T1 template to align with")
    parser.add_argument("--prepared", type=Path, help="folder of the prepared volumes")
    parser.add_argument("--out", type=Path, help="folder of the results; without it, `table` prints the published ones")
    parser.add_argument("--scratch", type=Path, help="folder of weights, checkpoints and logits (OUT/scratch)")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--test", choices=tuple(TESTS), default="wilcoxon", help="table: test of significance")
    parser.add_argument("--processes", type=int, default=1, help="networks, or methods of them, at the same time")
    return parser


if __name__ == "__main__":
    sys.exit(main())
