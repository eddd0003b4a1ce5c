"""The paper's U-Net experiment; what is done already is not done again. Run from the repository's root.

python -m experiments.lpba40 prepare --preset hippocampus --data Task04_Hippocampus --prepared prepared
python -m experiments.lpba40 run --preset hippocampus --seed 0 1 --prepared prepared --out results/lpba40
python -m experiments.lpba40 table --out results/lpba40
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.lpba40.calibrate import METHODS, calibrate
from experiments.lpba40.network import predict, train_network
from experiments.lpba40.prepared import PreparedFolder
from experiments.lpba40.recipes import PRESETS, Job
from experiments.lpba40.table import print_tables
from segcal.data.datasets.splits import check_leaks, to_json
from segcal.files import read_json, staged_file, write_json
from segcal.types import InputError

_STAGES = ("prepare", "run", "train", "predict", "calibrate", "table")
_SPLIT = "splits.json"


def main(arguments: list[str] | None = None) -> int:
    """Run a stage; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(options: argparse.Namespace) -> None:
    if options.stage == "table":
        print_tables(_given(options.out, "--out"))
        return
    prepared = _given(options.prepared, "--prepared")
    for preset in options.preset:
        if options.stage == "prepare":
            from experiments.lpba40.prepare import prepare  # noqa: PLC0415  (no other stage needs its readers)

            prepare(PRESETS[preset].data, _given(options.data, "--data"), prepared, template=options.template)
            continue
        for seed in options.seed:
            _run_job(Job(preset, seed, options.small), prepared, options)


def _run_job(job: Job, prepared: Path, options: argparse.Namespace) -> None:
    out, data = _given(options.out, "--out"), PreparedFolder(prepared, job.recipe.data)
    scratch = options.scratch or out / "scratch"
    split = job.split(data.names)
    check_leaks(split)
    _keep_split(out / job.name / _SPLIT, to_json(split))
    for fold, nested in enumerate(split):
        if options.fold and fold not in options.fold:
            continue
        if options.stage in ("run", "train"):
            train_network(job, fold, nested.network, data, out, scratch, options.device)
        if options.stage in ("run", "predict"):
            predict(job, fold, nested.network, data, scratch, options.device)
        if options.stage in ("run", "calibrate"):
            for method in options.methods:
                calibrate(job, fold, nested, data, out, scratch, method=method, device=options.device)


def _keep_split(path: Path, content: object) -> None:
    """Write the split beside the results, or check that what is there was made with the same one."""
    if not path.exists():
        with staged_file(path) as file:
            write_json(file, content)
    elif read_json(path) != _as_json(content):
        raise InputError(f"'{path}' holds another split of these volumes; give another --out")


def _as_json(content: object) -> object:
    """Return what reading back a JSON file of `content` gives: lists in place of tuples."""
    if isinstance(content, dict):
        return {name: _as_json(value) for name, value in content.items()}
    return [_as_json(value) for value in content] if isinstance(content, list | tuple) else content


def _given(path: Path | None, option: str) -> Path:
    if path is None:
        raise InputError(f"this stage needs the folder {option}; give it")
    return path


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m experiments.lpba40", description=__doc__, formatter_class=raw)
    parser.add_argument("stage", choices=_STAGES, help="run: train, predict and calibrate")
    parser.add_argument("--preset", nargs="+", choices=tuple(PRESETS), default=["hippocampus"])
    parser.add_argument("--small", action="store_true", help="few volumes, a tiny network and few epochs, for a CPU")
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--fold", type=int, nargs="+", help="only these networks, 0 or 1")
    parser.add_argument("--data", type=Path, help="prepare: folder of the data set")
    parser.add_argument("--template", type=Path, help="prepare lpba40: skull-stripped T1 template to align with")
    parser.add_argument("--prepared", type=Path, help="folder of the prepared volumes")
    parser.add_argument("--out", type=Path, help="folder of the tables")
    parser.add_argument("--scratch", type=Path, help="folder of weights, checkpoints and logits (OUT/scratch)")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--device", default="auto")
    return parser


if __name__ == "__main__":
    sys.exit(main())
