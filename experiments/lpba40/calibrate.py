"""Fit one method on the calibration volumes of a fold, measure it on the test volumes, and write small tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd
import torch

from experiments.command import versions
from experiments.datasets.splits import NestedFold
from experiments.fitting import LEARNED, NAMES, best_of_rates, count_changes, on_device
from experiments.lpba40.network import normalised, read_logits
from experiments.lpba40.prepared import PreparedFolder
from experiments.lpba40.recipes import Job
from segcal import evaluate
from segcal.calibrators import Calibrator, methods
from segcal.evaluation.protocol import PatchRule
from segcal.files import staged_file, write_json
from segcal.regions import local_patch_size
from segcal.training.processes import choose_device
from segcal.types import Case, InputError

UNCALIBRATED = "uc"
"""The scores as they are."""
SCHEDULE = {"ibts-paper": "ibts", "lts-paper": "lts"}
"""IBTS and LTS with `preset="paper"`: the paper's inputs, start and schedule instead of the library's."""

_FIRST = ("ts", "ibts", "lts", "cts")
METHODS = (UNCALIBRATED, *_FIRST, *(name for name in NAMES if name not in _FIRST), *SCHEDULE, "auto")
"""Methods measured by default: the rows of the paper's table and `cts` first, what takes longest last."""

ROWS, PATCHES, REPORT = "rows.csv.gz", "patches.csv.gz", "report.json"
RULES: Mapping[PatchRule, str] = {"labelled": "", "paper": "every-patch"}
"""Folders, below that of a method, of what is measured with each rule for the *Local* patches that count."""
PAPERS_FORM = (UNCALIBRATED, "ts", *SCHEDULE)
"""Methods that are measured with the paper's rule too."""
_REPETITIONS = 2  # intervals are taken over all folds, when tables are made


def title_of(method: str) -> str:
    """Return the name of a method in the tables."""
    own = {UNCALIBRATED: "UC", "auto": "auto"}
    own |= {method: f"{NAMES[name]} (paper's schedule)" for method, name in SCHEDULE.items()}
    return own.get(method) or NAMES.get(method, method.upper())


def calibrate(
    job: Job,
    fold: int,
    nested: NestedFold,
    data: PreparedFolder,
    out: Path,
    scratch: Path,
    *,
    half: int,
    method: str,
    device: str,
) -> None:
    """Fit and measure one method on one calibration fold of a network, unless that is done."""
    folder = job.folder(out, fold) / f"calibration-{half}" / method
    if (folder / REPORT).exists():
        return
    about: dict[str, Any] = {"num_classes": len(data.classes), "background": 0}
    size, parts = local_patch_size(data.shapes), nested.calibration[half]
    started, title = perf_counter(), title_of(method)
    fit, check, test = (_cases(job, fold, data, scratch, each) for each in (parts.fit, parts.validation, parts.test))
    calibrator = None if method == UNCALIBRATED else fitted(job, method, fit, check, about, device)
    ready = perf_counter()
    settings: dict[str, Any] = {**about, "patch_size": size, "seed": 0, "repetitions": _REPETITIONS}
    for rule, part in RULES.items():
        if rule == "labelled" or method in PAPERS_FORM:
            results = evaluate(test, {title: calibrator}, **settings, patch_rule=rule)
            _write(results.to_frame(), folder / part / ROWS)
            _write(results.patches(), folder / part / PATCHES)
    changed = (0, 0) if calibrator is None else count_changes(test, {title: calibrator})[title]
    if calibrator is not None:
        calibrator.save(folder / "calibrator")
    report = None if calibrator is None else asdict(calibrator.fit_report_)
    content = {"job": asdict(job), "fold": fold, "calibration": half, "method": method, "patch_size": size}
    seconds = {"fit": ready - started, "measure": perf_counter() - ready}
    with staged_file(folder / REPORT) as file:  # last: its presence says that all is done
        write_json(file, {**content, "changed": changed, "seconds": seconds, "report": report, **versions()})
    nll = results.to_frame().query("metric == 'nll' and region == 'all'")["value"].mean()  # whatever patches count
    print(
        f"{job.name}, fold {fold}.{half}, {title}: NLL {nll:.4f}, fitted in {seconds['fit']:.1f} s, "
        f"measured in {seconds['measure']:.1f} s, labels changed {changed[0]:,}",
        flush=True,
    )


def fitted(
    job: Job, method: str, fit: Sequence[Case], check: Sequence[Case], about: Mapping[str, Any], device: str
) -> Calibrator:
    """Return a calibrator fitted on `fit`; methods that choose among epochs choose on `check`."""
    name = SCHEDULE.get(method, method)
    if name not in methods():
        raise InputError(f"methods must be among {', '.join((*METHODS, *methods()))}, got '{method}'")
    recipe, home = job.recipe, str(choose_device(device))
    own: dict[str, Any] = {"preset": "paper"} if method in SCHEDULE else {}
    settings: dict[str, Any] = {"seed": job.seed, "device": device, "cache_bytes": 8 << 30}
    settings["crop"] = recipe.calibrator_crop
    if method not in SCHEDULE or job.small:
        settings["epochs"] = recipe.calibrator_epochs
    of = {**about, "spatial_dims": 3, "image_channels": 1, **own}
    rates = recipe.rates if method in LEARNED else (None,)
    return best_of_rates(name, on_device(fit, home), on_device(check, home), of, settings, rates, home)[0]


def _cases(job: Job, fold: int, data: PreparedFolder, scratch: Path, names: Sequence[str]) -> list[Case]:
    """Return volumes with the logits of a network, which stay on disk until they are needed."""
    cases = []
    for name in names:
        volume = data.read(name)
        image = normalised(torch.from_numpy(volume.image)[None]).numpy()
        cases.append(Case(name, read_logits(job, fold, scratch, name), volume.labels, image, volume.spacing))
    return cases


def _write(frame: pd.DataFrame, path: Path) -> None:
    with staged_file(path) as file:
        frame.to_csv(file, index=False, compression="gzip")
