"""Reliability diagrams and the study of patch sizes (appendix): results that `segcal figure` draws."""

from __future__ import annotations

from pathlib import Path

from experiments.camvid.jobs import Job, Recipe
from experiments.camvid.network import names_of
from experiments.camvid.protocols import Source
from experiments.datasets.camvid import CLASSES, VOID, CamVid
from segcal import evaluate, load
from segcal.calibrators import Calibrator
from segcal.training.processes import choose_device
from segcal.types import InputError

SIZES = (24, 48, 72, 96, 144)
STUDY = "study"
_STUDIED = ("TS", "IBTS", "LTS")


def study(job: Job, data: CamVid, out: Path, recipe: Recipe, *, device: str) -> None:
    """Measure UC, TS, IBTS and LTS of the paper's protocol over patch sizes."""
    folder = job.folder(out) / "paper"
    if (folder / STUDY).exists():
        print(f"{job.name}: studied already")
        return
    place = choose_device(device)
    saved = [folder / "calibrators" / job.method(name) for name in _STUDIED]
    found: dict[str, Calibrator | None] = {job.method("UC"): None}
    found |= {path.name: load(path).to(place) for path in saved if path.is_dir()}
    if len(found) == 1:
        raise InputError(f"'{folder}' holds no calibrators; run the stage `calibrate` first")
    source, names = Source(job, data, out, str(place)), names_of(data, "test", recipe)
    settings = {"num_classes": len(CLASSES), "ignore_index": VOID, "patch_sizes": SIZES, "repetitions": 2}
    evaluate(source.stream("test", names), found, **settings).save(folder / STUDY)  # type: ignore[arg-type]
