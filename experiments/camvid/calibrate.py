"""Fit as a protocol says, and measure every method on all frames of `test`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from experiments.beside_paper import joined
from experiments.camvid.grouped import ShrunkTemperature
from experiments.camvid.jobs import Job, Recipe
from experiments.camvid.network import names_of
from experiments.camvid.protocols import FITS, Protocol, Source
from experiments.datasets.camvid import CLASSES, VOID, CamVid
from experiments.fitting import count_changes
from experiments.versions import versions
from segcal import evaluate
from segcal.calibrators import Calibrator
from segcal.evaluation.results import Results
from segcal.files import staged_file, write_json
from segcal.training.processes import choose_device

_T = TypeVar("_T")


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

    def measure(names: Sequence[str]) -> Results:
        return evaluate(
            source.stream("test", test_names),
            {name: methods[name] for name in names},
            num_classes=len(CLASSES),
            ignore_index=VOID,
            patch_size=recipe.patch_size,
            repetitions=recipe.repetitions,
            seed=0,
        )

    results = joined(_at_once(measure, list(methods)))
    results.save(folder / "results")
    for name, calibrator in named.items():
        if not isinstance(calibrator, ShrunkTemperature):  # which is made of two that are saved
            calibrator.save(folder / "calibrators" / name)
    timings["evaluate"] = perf_counter() - started

    started = perf_counter()

    def changes(names: Sequence[str]) -> dict[str, tuple[int, int]]:
        return count_changes(source.stream("test", test_names), {name: named[name] for name in names})

    changed = {name: found for part in _at_once(changes, list(named)) for name, found in part.items()}
    timings["count changes"] = perf_counter() - started
    content = {"job": asdict(job), "protocol": protocol, "changed": changed, "seconds": timings, "notes": notes}
    reports = {name: asdict(one.fit_report_) for name, one in named.items()}
    with staged_file(folder / "report.json") as file:  # last: its presence says that all is done
        write_json(file, {**content, "fits": reports, **versions()})
    print(f"{title}: labels changed, of all pixels of all test frames:")
    for name, (count, pixels) in changed.items():
        print(f"  {name}: {count} of {pixels}")
    print(f"{title}: seconds", {name: round(value, 1) for name, value in timings.items()}, flush=True)


def _at_once(work: Callable[[Sequence[str]], _T], methods: Sequence[str]) -> list[_T]:
    """Work on a share of the methods in each of several threads; one alone keeps about two cores busy."""
    count = min(len(methods), max(1, (os.cpu_count() or 1) // 2))
    ends = [len(methods) * k // count for k in range(count + 1)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, [methods[start:end] for start, end in pairwise(ends)]))
