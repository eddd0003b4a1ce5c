"""Fit as a protocol says, and measure every method on all frames of `test`; and over patch sizes (appendix)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from experiments.camvid.jobs import Job, Recipe
from experiments.camvid.network import names_of
from experiments.camvid.protocols import FITS, Protocol, Source
from experiments.command import versions
from experiments.datasets.camvid import CLASSES, VOID, CamVid
from experiments.fitting import count_changes
from segcal import evaluate, load
from segcal.calibrators import Calibrator
from segcal.files import staged_file, write_json
from segcal.training.processes import choose_device
from segcal.types import InputError

SIZES = (24, 48, 72, 96, 144)
STUDY = "study"
_STUDIED = ("TS", "IBTS", "LTS")


def calibrate(job: Job, data: CamVid, out: Path, recipe: Recipe, protocol: Protocol, *, device: str) -> None:
    """Fit, measure, count changed labels, and write all of it, unless it is there already."""
    folder, title = job.folder(out) / protocol, f"{job.name}, {protocol}"
    if (folder / "report.json").exists():
        print(f"{title}: measured already")
        return
    print(f"{title}:")
    source = Source(job, data, out, str(choose_device(device)))
    timings, notes = dict[str, float](), dict[str, Any]()
    fitted = FITS[protocol](source, recipe, timings, notes)
    named = {job.method(name): calibrator for name, calibrator in fitted.items()}

    started, test_names = perf_counter(), names_of(data, "test", recipe)
    methods: dict[str, Calibrator | None] = {job.method("UC"): None, **named}

    results = evaluate(
        source.stream("test", test_names),
        methods,
        num_classes=len(CLASSES),
        ignore_index=VOID,
        patch_size=recipe.patch_size,
        repetitions=recipe.repetitions,
        seed=0,
    )
    results.save(folder / "results")
    for name, calibrator in named.items():
        calibrator.save(folder / "calibrators" / name)
    timings["evaluate"] = perf_counter() - started

    started = perf_counter()
    changed = count_changes(source.stream("test", test_names), named)
    timings["count changes"] = perf_counter() - started
    content = {"job": asdict(job), "protocol": protocol, "changed": changed, "seconds": timings, "notes": notes}
    reports = {name: asdict(one.fit_report_) for name, one in named.items()}
    with staged_file(folder / "report.json") as file:  # last: its presence says that all is done
        write_json(file, {**content, "fits": reports, **versions()})
    print(f"{title}: labels changed, of all pixels of all test frames:")
    for name, (count, pixels) in changed.items():
        print(f"  {name}: {count} of {pixels}")
    print(f"{title}: seconds", {name: round(value, 1) for name, value in timings.items()}, flush=True)


def study(job: Job, data: CamVid, out: Path, recipe: Recipe, *, device: str) -> None:
    """Measure UC, TS, IBTS and LTS of the paper's protocol over patch sizes: results that `segcal figure` draws."""
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
