"""Run from the repository's root: `python -m experiments.multi_atlas run hippocampus --data DATA --out OUT`.

LPBA40 also needs a template: `run lpba40 --data LPBA40 --template MNI152.nii.gz --out OUT`.

The stages are prepare (NIfTI to small files; needs nibabel), register (needs SimpleITK), train, predict, calibrate,
fuse and table. Each skips what is done, so the command can be stopped at any time and run again; OUT may be moved to
another machine between stages.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path

from experiments.begun import check_unchanged
from experiments.command import parser_of, show, status_of
from experiments.multi_atlas.calibrating import calibrate
from experiments.multi_atlas.fusing import fuse
from experiments.multi_atlas.learning import predict, train_network
from experiments.multi_atlas.presets import PRESETS, Preset, small
from experiments.multi_atlas.registering import register_all
from experiments.multi_atlas.table import tables
from experiments.multi_atlas.volumes import prepare, prepared_folds
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
    out, preset = Path(options.out), _preset(options)
    wanted = _wanted(options.stage)
    _check_begun(out, preset)
    if "prepare" in wanted:
        if options.data is not None:
            prepare(Path(options.data), out, preset, template=options.template)
        elif options.stage == "prepare":
            raise InputError("give the folder of the volumes with --data")
    if "register" in wanted:
        register_all(out, preset, processes=options.processes)
    for fold in prepared_folds(out, preset):
        if options.fold is not None and fold.number != options.fold:
            continue
        if "train" in wanted:
            train_network(out, fold, preset, device=options.device)
        if "predict" in wanted:
            predict(out, fold, preset, device=options.device)
        if "calibrate" in wanted:
            calibrate(out, fold, preset, device=options.device)
        if "fuse" in wanted:
            fuse(out, fold, preset, processes=options.processes)
    if "table" in wanted and options.fold is None:
        show(tables(out, options.test), out)


def _wanted(stage: str) -> tuple[str, ...]:
    """All stages, one, or one and all after it (`train+`)."""
    if stage == "run":
        return STAGES
    if stage.endswith("+"):
        return STAGES[STAGES.index(stage[:-1]) :]
    return (stage,)


def _preset(options: argparse.Namespace) -> Preset:
    given = {name: getattr(options, name) for name in ("epochs", "local_epochs", "batch_size", "folds")}
    preset = small(PRESETS[options.preset]) if options.small else PRESETS[options.preset]
    return replace(preset, **{name: value for name, value in given.items() if value is not None})


def _check_begun(out: Path, preset: Preset) -> None:
    """Refuse to continue with other settings than those that a folder was begun with."""
    if (out / _BEGUN).exists():
        check_unchanged(out, read_json(out / _BEGUN), asdict(preset))
        return
    with staged_file(out / _BEGUN) as file:
        write_json(file, asdict(preset))


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("multi_atlas", __doc__)
    names = ("run", *STAGES, *(f"{stage}+" for stage in STAGES))
    parser.add_argument(
        "stage", choices=names, metavar="STAGE", help=f"run, or one of {', '.join(STAGES)}; + continues"
    )
    parser.add_argument("preset", choices=tuple(PRESETS))
    parser.add_argument("--data", help="folder of the data set; needed once, to prepare")
    parser.add_argument("--template", type=Path, help="lpba40: skull-stripped T1 template to align with, to prepare")
    parser.add_argument("--small", action="store_true", help="few volumes, a tiny network and one epoch, for a CPU")
    parser.add_argument("--out", required=True, help="folder of everything that is made")
    parser.add_argument("--processes", type=int, default=1, help="for registration and fusion")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--test", choices=tuple(TESTS), default="wilcoxon", help="table: test of significance")
    parser.add_argument("--epochs", type=int, help="of VoteNet+, instead of the preset's")
    parser.add_argument(
        "--local-epochs", type=int, help="of IBTS and LTS with segcal's settings, instead of the preset's"
    )
    parser.add_argument("--batch-size", type=int, help="of VoteNet+, instead of the preset's")
    parser.add_argument("--fold", type=int, choices=(0, 1), help="only this one, so that folds can run side by side")
    parser.add_argument("--folds", type=int, choices=(1, 2), help="instead of the preset's")
    return parser


if __name__ == "__main__":
    sys.exit(main())
