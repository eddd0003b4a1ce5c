"""Train nnU-Net, predict by folds and by their mean, and calibrate both as the guide says; what is done is not redone.

python -m experiments.nnunet run --data Task04_Hippocampus --out results/nnunet    # needs segcal[nnunet,medical]
python -m experiments.nnunet archive --out results/nnunet    # keeps the rows for `python -m experiments.passes table`
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from experiments.command import given, parser_of, status_of
from experiments.datasets.hippocampus import CLASSES, open_hippocampus
from experiments.datasets.splits import shuffled_parts
from experiments.fitting import count_changes
from experiments.passes.sets import FOLDS, POOL
from experiments.passes.table import COLUMNS, MEASURED
from experiments.rows import pack_rows, unpack_rows
from segcal import evaluate, load
from segcal.calibrators import Calibrator, FitReport
from segcal.data.folders.folder import open_folder
from segcal.files import read_json, staged_file, write_json
from segcal.types import Array

_DATASET, _CONFIGURATION, _TRAINER = "Dataset004_Hippocampus", "2d", "nnUNetTrainerShort"
_BATCH = 8  # slices, for a CPU; the planner takes 28
_KINDS = ("Tr", "Val", "Ts")
_MEAN, _ONE = "nnunet", "nnunet-fold-0"
_BACKGROUND = ("--background", "0")
_ROWS = "rows.csv.gz"


def main(arguments: list[str] | None = None) -> int:
    """Do the stage asked for."""
    options = _parser().parse_args(arguments)
    return status_of(lambda: archive(options) if options.stage == "archive" else run(options))


def archive(options: argparse.Namespace) -> None:
    """Put the rows into the archive of `experiments.passes`; other tasks stay as they are."""
    known, own = unpack_rows(MEASURED), pd.read_csv(given(options.out, "--out") / _ROWS)
    pack_rows(pd.concat([known[~known["part"].isin(own["part"])], own[known.columns]]), MEASURED, COLUMNS)


def run(options: argparse.Namespace) -> None:
    """Do every step, and write one row per case, method, region and metric."""
    out, folds = given(options.out, "--out").resolve(), range(options.folds)
    raw, model = out / "raw" / _DATASET, out / "results" / _DATASET / f"{_TRAINER}__nnUNetPlans__{_CONFIGURATION}"
    _write_dataset(given(options.data, "--data"), raw, options.sizes)
    _train(out, model, folds)
    mean, apart = out / "mean", [out / f"fold-{fold}" for fold in folds]
    for kind in _KINDS[1:]:
        _predict(out, raw / f"images{kind}", mean / kind, folds)
    for fold in folds:
        _predict(out, raw / "imagesVal", apart[fold] / "Val", [fold])
    _predict(out, raw / "imagesTs", apart[0] / "Ts", [0])
    rows = [
        _measure(part, "UC", folder / "Ts", folder / "Ts", raw) for part, folder in ((_MEAN, mean), (_ONE, apart[0]))
    ]
    for part, method, path in _calibrate(out, raw, model, [folder / "Val" for folder in apart]):
        plain, calibrator = (mean if part == _MEAN else apart[0]) / "Ts", load(path)
        if method.startswith("TS"):  # applied to what nnU-Net wrote: every prediction takes minutes
            rows.append(_measure(part, method, plain, plain, raw, calibrator))
            continue
        written = out / "deployed" / part / method.replace(" ", "-")
        only = ["--folds", "0"] if part == _ONE else []
        _once(written, out, "segcal", "nnunet", "predict", path, raw / "imagesTs", "--model", model, *only, "--device",
              "cpu", "--out", written)  # fmt: skip
        rows.append(_measure(part, method, written, plain, raw, fit=calibrator.fit_report_))
    with staged_file(out / _ROWS) as file:
        pd.concat(rows).to_csv(file, index=False, compression="gzip")


def _write_dataset(source: Path, raw: Path, sizes: Sequence[int]) -> None:
    """Write volumes to train on, to calibrate on and to measure, named as nnU-Net needs them; labels are integers."""
    import nibabel  # noqa: PLC0415

    if (raw / "dataset.json").exists():
        return
    volumes = open_hippocampus(source)
    for kind, names in zip(_KINDS, shuffled_parts(list(volumes.names), sizes, seed=0), strict=True):
        for folder in ("images", "labels"):
            (raw / (folder + kind)).mkdir(parents=True, exist_ok=True)
        for name in names:
            image, labels = volumes.files[name]
            shutil.copyfile(image, raw / f"images{kind}" / f"{name}_0000.nii.gz")
            stored: Any = nibabel.load(labels)
            truth = stored.__class__(_labels(labels).T.astype(np.uint8), stored.affine)
            truth.to_filename(raw / f"labels{kind}" / f"{name}.nii.gz")
    values = {name: value for value, name in enumerate(CLASSES)}
    about = {"channel_names": {"0": "MRI"}, "labels": values, "numTraining": sizes[0], "file_ending": ".nii.gz"}
    with staged_file(raw / "dataset.json") as file:  # last: its presence says that all is there
        write_json(file, about)


def _train(out: Path, model: Path, folds: Sequence[int]) -> None:
    """Plan, preprocess and train every fold, and write the probabilities of its validation cases."""
    plans = out / "preprocessed" / _DATASET / "nnUNetPlans.json"
    _once(plans, out, "nnUNetv2_plan_and_preprocess", "-d", "4", "-c", _CONFIGURATION, "-npfp", "1", "-np", "1")
    content = read_json(plans)
    if content["configurations"][_CONFIGURATION]["batch_size"] != _BATCH:
        content["configurations"][_CONFIGURATION]["batch_size"] = _BATCH
        with staged_file(plans) as file:
            write_json(file, content)
    for fold in folds:
        train = ("nnUNetv2_train", "4", _CONFIGURATION, str(fold), "-tr", _TRAINER, "-device", "cpu")
        _once(model / f"fold_{fold}" / "checkpoint_final.pth", out, *train)
        if not any((model / f"fold_{fold}" / "validation").glob("*.npz")):
            _command(out, *train, "--val", "--npz")


def _predict(out: Path, images: Path, target: Path, folds: Sequence[int]) -> None:
    """Predict a folder of images by the mean of folds, with probabilities."""
    if len(list(target.glob("*.npz"))) < len(list(images.iterdir())):
        _command(out, "nnUNetv2_predict", "-i", images, "-o", target, "-d", "4", "-c", _CONFIGURATION, "-tr", _TRAINER,
                 "-f", *folds, "--save_probabilities", "-device", "cpu", "-npp", "1", "-nps", "1")  # fmt: skip


def _calibrate(out: Path, raw: Path, model: Path, apart: Sequence[Path]) -> list[tuple[str, str, Path]]:
    """Fit on cross-validation and on the mean of the folds; return what is deployed where, and its row."""
    single, mean = out / "calibrators" / "cross-validation", out / "calibrators" / "mean"
    labelled = ("segcal", "fit", out / "mean" / "Val", "--labels", raw / "labelsVal", *_BACKGROUND)
    for method in ("ts", "cts"):
        _once(single / method, out, "segcal", "nnunet", "fit", model, *_BACKGROUND, "--method", method, "--out",
              single / method)  # fmt: skip
        _once(mean / method, out, *labelled, "--logits-only", "--method", method, "--out", mean / method)
    _once(mean / "pool", out, *labelled, "--passes", *apart, "--method", "pool", "--out", mean / "pool")
    pairs = [("TS", "ts"), ("CTS", "cts")]
    return [
        *((_MEAN, row, mean / method) for row, method in pairs),
        *((_MEAN, f"{row} of single folds", single / method) for row, method in pairs),
        (_MEAN, POOL + FOLDS, mean / "pool"),
        *((_ONE, row, single / method) for row, method in pairs),
    ]


def _measure(
    part: str,
    method: str,
    folder: Path,
    own: Path,
    raw: Path,
    calibrator: Calibrator | None = None,
    fit: FitReport | None = None,
) -> pd.DataFrame:
    """Measure a folder of predictions as they are, or calibrated.

    A label has changed where the segmentation, or the class of the largest probability, is not that of nnU-Net's own.
    """
    cases, report = open_folder(folder, labels=raw / "labelsTs"), fit if calibrator is None else calibrator.fit_report_
    results = evaluate(cases, {"UC": calibrator}, num_classes=len(CLASSES), background=0, patches=0, repetitions=2)
    changed = 0 if calibrator is None else count_changes(cases, {method: calibrator})[method][0]
    for case in cases:
        plain, found = (_labels(one / f"{case.name}.nii.gz") for one in (own, folder))
        likeliest = np.asarray(case.logits).argmax(axis=0)
        changed += int(((plain != found) | (plain != likeliest)).sum())
    rows = results.to_frame().query("region in ('all', 'boundary')")
    nll = rows.query("metric == 'nll' and region == 'all'")["value"].mean()
    print(f"{part}, {method}: mean NLL {nll:.4f}, labels changed {changed}", flush=True)
    about: dict[str, Any] = {"part": part, "split": 0, "changed": changed, "method": method, "group": rows["case"]}
    images, seconds = (report.cases, report.seconds) if report else (0, 0.0)
    return rows.assign(**about, images=images, seconds=seconds)


def _labels(path: Path) -> Array:
    """Return the labels `[z, y, x]` of a NIfTI file."""
    import nibabel  # noqa: PLC0415  (no other stage needs it)

    return np.asarray(nibabel.load(path).dataobj).T  # type: ignore[attr-defined]


def _once(done: Path, out: Path, *command: str | int | Path) -> None:
    if not done.exists():
        _command(out, *command)


def _command(out: Path, *command: str | int | Path) -> None:
    """Run a command of this environment, and print how long it took."""
    folders = {f"nnUNet_{name}": str(out / name) for name in ("raw", "preprocessed", "results")}
    words, started = [str(word) for word in command], perf_counter()
    folders["nnUNet_extTrainer"] = str(Path(__file__).with_name("trainers"))
    workers = {"nnUNet_def_n_proc": "1", "nnUNet_n_proc_DA": "0" if words[0] == "nnUNetv2_train" else "1"}
    with (out / "log.txt").open("a", encoding="utf-8") as log:
        program, environment = Path(sys.executable).with_name(words[0]), {**os.environ, **folders, **workers}
        subprocess.run([program, *words[1:]], env=environment, stdout=log, stderr=log, check=True)
    print(f"{perf_counter() - started:.0f} s: {' '.join(words)}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("nnunet", __doc__)
    parser.add_argument("stage", choices=("run", "archive"))
    parser.add_argument("--data", type=Path, help="folder of Task04_Hippocampus, which holds imagesTr and labelsTr")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--sizes", type=int, nargs=3, default=(20, 12, 16), help="volumes to train, calibrate, measure")
    parser.add_argument("--folds", type=int, default=3, help="folds of nnU-Net that are trained")
    return parser


if __name__ == "__main__":
    sys.exit(main())
