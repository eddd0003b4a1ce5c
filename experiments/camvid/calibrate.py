"""Fit every method of the table on frames of `val`, and measure it on all frames of `test`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, TypeVar

from experiments.beside_paper import joined
from experiments.camvid.grouped import ShrunkTemperature, choose, temperature_pair
from experiments.camvid.jobs import Job, Recipe, versions
from experiments.camvid.network import names_of, read_logits
from experiments.fitting import NAMES, available, count_changes, fit_methods, floored, on_device
from segcal import evaluate
from segcal.calibrators import Calibrator, LocalTemperatureScaling, TemperatureScaling, create
from segcal.calibrators.local import Preset
from segcal.data.camvid import CLASSES, VOID, CamVid, Split, calibration_split, time_blocks
from segcal.files import staged_file, write_json
from segcal.results import Results
from segcal.training import choose_device
from segcal.types import Case

Protocol = Literal["paper", "schedule", "grouped", "beyond"]
_OF_JOINT, _TRAINED = ("ts", "lts"), ("ts", "ibts", "lts")
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


@dataclass(frozen=True)
class Source:
    """The cases of a job: each frame with the logits that the job's network gave."""

    job: Job
    data: CamVid
    out: Path
    device: str

    def stream(self, split: Split, names: Sequence[str]) -> Iterator[Case]:
        """Cases one at a time, on the CPU."""
        for name in names:
            yield self.data.read(split, name).case(read_logits(self.job, self.out, split, name))


def _at_once(work: Callable[[Sequence[str]], _T], methods: Sequence[str]) -> list[_T]:
    """Work on a share of the methods in each of several threads; one alone keeps about two cores busy."""
    count = min(len(methods), max(1, (os.cpu_count() or 1) // 2))
    ends = [len(methods) * k // count for k in range(count + 1)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, [methods[start:end] for start, end in pairwise(ends)]))


def fit_as_paper(
    source: Source, recipe: Recipe, timings: dict[str, float], notes: dict[str, Any]
) -> dict[str, Calibrator]:
    """Every method on 90 frames; 11 others choose the epoch of those that are trained, by segcal's schedule."""
    wanted = tuple(NAMES) if source.job.loss == "ce" else _OF_JOINT
    return _fit_on_most(source, recipe, wanted, timings, notes)


def fit_by_schedule(
    source: Source, recipe: Recipe, timings: dict[str, float], notes: dict[str, Any]
) -> dict[str, Calibrator]:
    """Those that are trained, on the same frames, by the paper's own schedule: 100 epochs at 1e-5, then 1e-6."""
    wanted = _TRAINED if source.job.loss == "ce" else _OF_JOINT
    epochs = min(100, recipe.calibrator_epochs)
    return _fit_on_most(source, recipe, wanted, timings, notes, preset="paper", epochs=epochs)


def _fit_on_most(
    source: Source,
    recipe: Recipe,
    wanted: Sequence[str],
    timings: dict[str, float],
    notes: dict[str, Any],
    *,
    preset: Preset = "default",
    epochs: int | None = None,
) -> dict[str, Calibrator]:
    """Methods on 90 of the frames of `val`, with 11 to choose the epoch; LTS with a floor below as well."""
    fit_names, check_names = calibration_split(names_of(source.data, "val", recipe))
    notes |= {"fit": list(fit_names), "validation": list(check_names)}
    fitted = fit_methods(
        available(wanted),
        list(source.stream("val", fit_names)),
        list(source.stream("val", check_names)),
        about={"num_classes": len(CLASSES), "spatial_dims": 2, "image_channels": 3, "ignore_index": VOID},
        training={"epochs": epochs or recipe.calibrator_epochs, "seed": source.job.seed},
        preset=preset,
        device=source.device,
        timings=timings,
    )
    one, local = fitted["TS"], fitted["LTS"]
    assert isinstance(one, TemperatureScaling)
    assert isinstance(local, LocalTemperatureScaling)
    return {**fitted, "LTS floored": floored(local, one)}


def fit_grouped(
    source: Source, recipe: Recipe, timings: dict[str, float], notes: dict[str, Any]
) -> dict[str, Calibrator]:
    """TS, LTS and what lies between, on all frames, with epochs and share from blocks of time that were left out."""
    started = perf_counter()
    names, seed, device = names_of(source.data, "val", recipe), source.job.seed, source.device
    cases = on_device(list(source.stream("val", names)), device)
    choice = choose(cases, epochs=recipe.calibrator_epochs, folds=recipe.folds, seed=seed, device=device)
    timings["cross-validation"] = perf_counter() - started
    started = perf_counter()
    one, local = temperature_pair(cases, epochs=choice.epochs, seed=seed, device=device)
    timings["fit TS and LTS"] = perf_counter() - started
    notes |= {"fit": list(names), "epochs": choice.epochs, "best_epochs": list(choice.best_epochs)}
    notes |= {"share": choice.share, "nll": {f"{share:.1f}": nll for share, nll in choice.nll.items()}}
    print(
        f"  {choice.epochs} epochs (best {choice.best_epochs}), {choice.share:.1f} of the way from TS to LTS",
        flush=True,
    )
    return {"TS": one, "LTS": local, "LTS shrunk": ShrunkTemperature(one, local, choice.share)}


def fit_beyond(
    source: Source, recipe: Recipe, timings: dict[str, float], notes: dict[str, Any]
) -> dict[str, Calibrator]:
    """Contextual temperature scaling on all frames, which chooses its strengths by blocks of time left out."""
    names = names_of(source.data, "val", recipe)
    groups = {name: str(k) for k, block in enumerate(time_blocks(names, recipe.folds)) for name in block}
    cases = [replace(case, group=groups[case.name]) for case in source.stream("val", names)]
    notes |= {"fit": list(names)}
    fitted = dict[str, Calibrator]()
    for name, settings in _CONTEXTUAL.items():
        started = perf_counter()
        fitted[name] = create("cts", len(CLASSES), ignore_index=VOID, **settings).fit(cases)
        timings[f"fit {name}"] = perf_counter() - started
    return fitted


_CONTEXTUAL = {"TS by class": {"features": False}, "CTS": {"classes": False}, "CTS with classes": {}}
FITS: dict[Protocol, Callable[[Source, Recipe, dict[str, float], dict[str, Any]], dict[str, Calibrator]]] = {
    "paper": fit_as_paper,
    "schedule": fit_by_schedule,
    "grouped": fit_grouped,
    "beyond": fit_beyond,
}
"""What each protocol fits, on frames of `val` alone."""
PROTOCOLS = tuple(FITS)
