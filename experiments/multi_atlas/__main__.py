"""Run from the repository's root: `python -m experiments.multi_atlas run hippocampus --data DATA --out OUT`.

LPBA40 also needs a template: `run lpba40 --data LPBA40 --template MNI152.nii.gz --out OUT`.

The stages are prepare (NIfTI to small files; needs nibabel), register (needs SimpleITK), train, predict, calibrate,
fuse and table. Each skips what is done, so the command can be stopped at any time and run again; OUT may be moved to
another machine between stages.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from experiments.command import check_unchanged, parser_of, show, status_of
from experiments.multi_atlas.calibrating import calibrate
from experiments.multi_atlas.fusing import fuse
from experiments.multi_atlas.learning import predict, train_network
from experiments.multi_atlas.presets import PRESETS, Preset, small
from experiments.multi_atlas.table import tables
from experiments.multi_atlas.volumes import prepare, prepared_folds, register_all
from segcal.files import read_json, staged_file, write_json
from segcal.statistics import TESTS
from segcal.types import InputError

STAGES = ("prepare", "register", "train", "predict", "calibrate", "fuse", "table")
_BEGUN = "preset.json"


def main(arguments: list[str] | None = None) -> int:
    """Do the stages asked for."""
    options = _parser().parse_args(arguments)
    return status_of(lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    out = Path(options.out)
    preset = small(PRESETS[options.preset]) if options.small else PRESETS[options.preset]
    wanted = STAGES if options.stage == "run" else (options.stage,)
    _check_begun(out, preset)
    if "prepare" in wanted:
        if options.data is not None:
            prepare(Path(options.data), out, preset, template=options.template)
        elif options.stage == "prepare":
            raise InputError("give the folder of the volumes with --data")
    if "register" in wanted:
        register_all(out, preset, processes=options.processes)
    for fold in prepared_folds(out, preset):
        if "train" in wanted:
            train_network(out, fold, preset, device=options.device)
        if "predict" in wanted:
            predict(out, fold, preset, device=options.device)
        if "calibrate" in wanted:
            calibrate(out, fold, preset, device=options.device)
        if "fuse" in wanted:
            fuse(out, fold, preset, processes=options.processes)
    if "table" in wanted:
        show(tables(out, options.test), out)


def _check_begun(out: Path, preset: Preset) -> None:
    """Refuse to continue with other settings than those that a folder was begun with."""
    if (out / _BEGUN).exists():
        check_unchanged(out, read_json(out / _BEGUN), asdict(preset))
        return
    with staged_file(out / _BEGUN) as file:
        write_json(file, asdict(preset))


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("multi_atlas", __doc__)
    parser.add_argument("stage", choices=("run", *STAGES), help="run: all of them")
    parser.add_argument("preset", choices=tuple(PRESETS))
    parser.add_argument("--data", help="folder of the data set; needed once, to prepare")
    parser.add_argument("--template", type=Path, help="lpba40: skull-stripped T1 template to align with, to prepare")
    parser.add_argument("--small", action="store_true", help="few volumes, a tiny network and one epoch, for a CPU")
    parser.add_argument("--out", required=True, help="folder of everything that is made")
    parser.add_argument("--processes", type=int, default=1, help="for registration and fusion")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--test", choices=tuple(TESTS), default="wilcoxon", help="table: test of significance")
    return parser


if __name__ == "__main__":
    sys.exit(main())
