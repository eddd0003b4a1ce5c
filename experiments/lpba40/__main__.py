"""The paper's U-Net experiment; what is done already is not done again. Run from the repository's root.

python -m experiments.lpba40 prepare --preset hippocampus --data Task04_Hippocampus --prepared prepared
python -m experiments.lpba40 run --preset hippocampus --seed 0 1 --prepared prepared --out results/lpba40
python -m experiments.lpba40 table --out results/lpba40
python -m experiments.lpba40 table        # from the published measurements
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import torch

from experiments.lpba40.calibrate import METHODS, calibrate
from experiments.lpba40.gathered import MEASURED, gather, pack
from experiments.lpba40.network import predict, train_network
from experiments.lpba40.prepared import PreparedFolder
from experiments.lpba40.recipes import PRESETS, Job
from experiments.lpba40.table import print_tables
from segcal.data.datasets.splits import NestedFold, check_leaks, to_json
from segcal.files import read_json, staged_file, write_json
from segcal.types import InputError

_STAGES = ("prepare", "run", "train", "predict", "calibrate", "table", "archive")
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
        print_tables(options.out)
    elif options.stage == "archive":
        for measured in gather(_given(options.out, "--out")):
            pack(measured, MEASURED / f"{measured.job.name}.zip")
    elif options.stage == "prepare":
        from experiments.lpba40.prepare import prepare  # noqa: PLC0415  (no other stage needs its readers)

        for preset in options.preset:
            data, prepared = _given(options.data, "--data"), _given(options.prepared, "--prepared")
            prepare(PRESETS[preset].data, data, prepared, template=options.template)
    else:
        _run_networks(options)


def _run_networks(options: argparse.Namespace) -> None:
    """Run the stages of every network that was asked for, several networks or methods at once with --processes."""
    jobs = [Job(preset, seed, options.small) for preset in options.preset for seed in options.seed]
    splits = {job: _split(job, options) for job in jobs}
    folds = {(job, k): fold for job in jobs for k, fold in enumerate(splits[job]) if k in (options.fold or (k,))}
    if options.processes == 1:
        for (job, fold), nested in folds.items():
            _run_network(options, job, fold)
            for half, method in product(range(len(nested.calibration)), _methods(options)):
                _run_method(options, job, fold, half, method)
        return
    # spawned, since neither CUDA nor the threads of PyTorch survive a fork
    threads = max(1, (os.cpu_count() or 1) // options.processes)
    with ProcessPoolExecutor(options.processes, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        networks = {pool.submit(_run_network, options, *place): place for place in folds}
        measured = []
        for network in as_completed(networks):
            network.result()
            place = networks[network]
            halves = range(len(folds[place].calibration))
            # the last methods take longest: begun first, they do not keep one process busy when all others are done
            for method, half in product(reversed(_methods(options)), halves):
                measured.append(pool.submit(_run_method, options, *place, half, method))
        for done in measured:
            done.result()


def _split(job: Job, options: argparse.Namespace) -> tuple[NestedFold, ...]:
    """Return the split of a job, checked, and written beside its results."""
    out, data = _given(options.out, "--out"), _data(job, options)
    split = job.split(data.names)
    check_leaks(split)
    _keep_split(out / job.name / _SPLIT, to_json(split))
    return split


def _methods(options: argparse.Namespace) -> list[str]:
    return list(options.methods) if options.stage in ("run", "calibrate") else []


def _run_network(options: argparse.Namespace, job: Job, fold: int) -> None:
    """Train one network and predict with it."""
    out, data, nested = options.out, _data(job, options), _split(job, options)[fold]
    if options.stage in ("run", "train"):
        train_network(job, fold, nested.network, data, out, _scratch(options), options.device)
    if options.stage in ("run", "predict"):
        predict(job, fold, nested.network, data, _scratch(options), options.device)


def _run_method(options: argparse.Namespace, job: Job, fold: int, half: int, method: str) -> None:
    """Fit and measure one method on the logits of a network."""
    data, nested, out = _data(job, options), _split(job, options)[fold], options.out
    calibrate(job, fold, nested, data, out, _scratch(options), half=half, method=method, device=options.device)


def _scratch(options: argparse.Namespace) -> Path:
    folder: Path = options.scratch or options.out / "scratch"
    return folder


def _data(job: Job, options: argparse.Namespace) -> PreparedFolder:
    return PreparedFolder(_given(options.prepared, "--prepared"), job.recipe.data)


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
    parser.add_argument("--processes", type=int, default=1, help="networks, or methods of them, at the same time")
    return parser


if __name__ == "__main__":
    sys.exit(main())
