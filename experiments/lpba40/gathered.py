"""Measurements of a job, from its folders or from the archive that is kept beside the experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pandas as pd

from experiments import archive
from experiments.lpba40.calibrate import PATCHES, REPORT, ROWS, RULES
from experiments.lpba40.network import LOG
from experiments.lpba40.recipes import PRESETS, Job
from segcal.evaluation.protocol import PatchRule
from segcal.files import read_json, write_json
from segcal.types import InputError

MEASURED = Path(__file__).with_name("measured")
"""Folder of the published measurements: one archive per job."""

_ABOUT = "job.json"
_IMAGES, _OF_PATCHES = "images.csv", "patches.csv"  # names that `experiments.archive` knows
_OF_FIT = ("fold", "calibration", "method", "patch_size", "changed")
_CHOICES = ("chosen", "share")


class Rows(NamedTuple):
    """Metrics of volumes and patches, of the methods that were measured on all volumes.

    Attributes:
        images: A row for each volume, method, region and metric.
        patches: The same for the *Local* patches.
    """

    images: pd.DataFrame
    patches: pd.DataFrame


@dataclass(frozen=True)
class Measured:
    """Everything that the tables of one job are made from.

    Attributes:
        job: The job.
        rows: Metrics with each rule for the patches that count.
        fits: One entry for each method and calibration fold: labels changed, seconds and what was chosen.
        networks: One entry for each network: its Dice score, training time and split.
    """

    job: Job
    rows: Mapping[PatchRule, Rows]
    fits: Sequence[Mapping[str, Any]]
    networks: Sequence[Mapping[str, Any]]


def gather(out: Path) -> list[Measured]:
    """Return what is finished in a folder of results, in the order of the presets and seeds."""
    reports = dict[Job, list[Path]]()
    for path in sorted(out.glob(f"*/fold-*/*/*/{REPORT}")):
        reports.setdefault(Job(**read_json(path)["job"]), []).append(path)
    if not reports:
        raise InputError(f"'{out}' holds nothing measured; run `python -m experiments.lpba40 run` first")
    return _ordered([_gathered(out, job, paths) for job, paths in reports.items()])


def pack(measured: Measured, path: Path) -> None:
    """Write what a job has measured into one small archive (`experiments.archive`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        for rule, rows in measured.rows.items():
            (folder / RULES[rule]).mkdir(exist_ok=True)
            rows.images.to_csv(folder / RULES[rule] / _IMAGES, index=False)
            rows.patches.to_csv(folder / RULES[rule] / _OF_PATCHES, index=False)
        write_json(folder / _ABOUT, {"job": asdict(measured.job), "fits": measured.fits, "networks": measured.networks})
        archive.pack(folder, path)


def unpack(folder: Path) -> list[Measured]:
    """Return what the archives of a folder hold."""
    found = [_unpacked(path) for path in sorted(folder.glob("*.zip"))]
    if not found:
        raise InputError(f"'{folder}' holds no archive; give the folder of your own results with --out")
    return _ordered(found)


def _unpacked(path: Path) -> Measured:
    with TemporaryDirectory() as name:
        folder = Path(name) / "job"
        archive.unpack(path, folder)
        about = read_json(folder / _ABOUT)
        rows = {
            rule: _complete(*(_read(folder / part / table) for table in (_IMAGES, _OF_PATCHES)))
            for rule, part in RULES.items()
            if (folder / part / _IMAGES).exists()
        }
    return Measured(Job(**about["job"]), rows, about["fits"], about["networks"])


def _gathered(out: Path, job: Job, reports: Sequence[Path]) -> Measured:
    rows = dict[PatchRule, Rows]()
    for rule, part in RULES.items():
        if folders := [path.parent / part for path in reports if (path.parent / part / ROWS).exists()]:
            tables = (pd.concat([_read(own / name) for own in folders], ignore_index=True) for name in (ROWS, PATCHES))
            rows[rule] = _complete(*tables)
    networks = [_network(read_json(path)) for path in sorted((out / job.name).glob(f"fold-*/{LOG}"))]
    return Measured(job, rows, [_fit(read_json(path)) for path in reports], networks)


def _complete(images: pd.DataFrame, patches: pd.DataFrame) -> Rows:
    """Return the rows without methods that lack some volumes: their means would be of others."""
    counts = images.dropna(subset=["value"]).groupby("method")["case"].nunique()
    done = counts[counts == counts.max()].index
    return Rows(*(table[table["method"].isin(done)].reset_index(drop=True) for table in (images, patches)))


def _fit(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what tables show of the report of a fit."""
    details = (report["report"] or {}).get("details", {})
    choices = {name: details[name] for name in _CHOICES if name in details}
    return {**{name: report[name] for name in _OF_FIT}, "seconds": round(report["seconds"]["fit"], 2), **choices}


def _network(log: Mapping[str, Any]) -> dict[str, Any]:
    """Return what tables show of the training of a network."""
    sizes = {part: len(log["split"][part]) for part in ("fit", "validation")}
    kept = {name: log[name] for name in ("dice", "seconds", "best_epoch", "device")}
    return {**kept, "epochs": len(log["epochs"]), **sizes}


def _read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, dtype={"case": str, "origin": str})


def _ordered(measured: Sequence[Measured]) -> list[Measured]:
    places = list(PRESETS)
    return sorted(measured, key=lambda one: (places.index(one.job.preset), one.job.small, one.job.seed))
