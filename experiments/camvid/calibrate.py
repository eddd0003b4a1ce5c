"""Fit every method of the table on frames of `val`, and measure it on all frames of `test`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch

from experiments.camvid.grouped import ShrunkTemperature, choose, temperature_pair
from experiments.camvid.jobs import Job, Recipe, versions
from experiments.camvid.network import names_of, read_logits
from segcal import create, evaluate, methods
from segcal.calibrators import Calibrator
from segcal.cases import slabs_of
from segcal.data.camvid import CLASSES, VOID, CamVid, Split, calibration_split
from segcal.files import staged_file, write_json
from segcal.training import choose_device
from segcal.types import Case

Protocol = Literal["paper", "grouped"]
PROTOCOLS: tuple[Protocol, ...] = ("paper", "grouped")

NAMES = {
    "isotonic": "IsoReg",
    "vector": "VS",
    "ets": "ETS",
    "dirichlet": "DirODIR",
    "ts": "TS",
    "ibts": "IBTS",
    "lts": "LTS",
}
"""segcal's names and the table's, in the order of its rows."""
_OF_JOINT = ("ts", "lts")
_LEARNED = ("ibts", "lts")
_ON_DEVICE = ("ts", *_LEARNED)


def calibrate(job: Job, data: CamVid, out: Path, recipe: Recipe, protocol: Protocol, *, device: str) -> None:
    """Fit, measure, count changed labels, and write all of it, unless it is there already."""
    folder = job.folder(out) / protocol
    if (folder / "report.json").exists():
        print(f"{job.name}, {protocol}: measured already")
        return
    source = Source(job, data, out, str(choose_device(device)))
    fit = fit_as_paper if protocol == "paper" else fit_grouped
    timings, notes = dict[str, float](), dict[str, Any]()
    fitted = fit(source, recipe, timings, notes)
    named: dict[str, Calibrator | None] = {job.method("UC"): None}
    named |= {job.method(name): calibrator for name, calibrator in fitted.items()}

    started = perf_counter()
    test = source.stream("test", names_of(data, "test", recipe))
    results = evaluate(test, named, num_classes=len(CLASSES), ignore_index=VOID, patch_size=recipe.patch_size, seed=0)
    results.save(folder / "results")
    timings["evaluate"] = perf_counter() - started

    started = perf_counter()
    changed = count_changes(source.stream("test", names_of(data, "test", recipe)), named)
    timings["count changes"] = perf_counter() - started
    reports = {name: asdict(one.fit_report_) for name, one in named.items() if one is not None}
    content = {"job": asdict(job), "protocol": protocol, "changed": changed, "seconds": timings, "notes": notes}
    with staged_file(folder / "report.json") as file:  # last: its presence says that all is done
        write_json(file, {**content, "fits": reports, **versions()})
    print(f"{job.name}, {protocol}: labels changed, of all pixels of all test frames:")
    for name, (count, pixels) in changed.items():
        print(f"  {name}: {count} of {pixels}")
    print(f"{job.name}, {protocol}: seconds", {name: round(value, 1) for name, value in timings.items()})


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

    def on_device(self, cases: Sequence[Case]) -> list[Case]:
        """Cases whose logits and images are held where learned calibrators are fitted."""
        return [
            replace(
                case,
                logits=torch.as_tensor(case.logits, device=self.device),
                image=torch.as_tensor(case.image, device=self.device),
            )
            for case in cases
        ]


def fit_as_paper(
    source: Source, recipe: Recipe, timings: dict[str, float], notes: dict[str, Any]
) -> dict[str, Calibrator]:
    """Every method on 90 frames; 11 others choose the epoch of those that are trained."""
    names = names_of(source.data, "val", recipe)
    fit_names, check_names = calibration_split(names)
    fit, check = (list(source.stream("val", part)) for part in (fit_names, check_names))
    near = {"fit": source.on_device(fit), "check": source.on_device(check)}
    wanted = tuple(NAMES) if source.job.loss == "ce" else _OF_JOINT
    if missing := [name for name in wanted if name not in methods()]:
        print(f"this segcal has no {', '.join(missing)}: left out")
    notes |= {"fit": list(fit_names), "validation": list(check_names), "missing": missing}
    fitted = {}
    for method in wanted:
        if method in missing:
            continue
        started = perf_counter()
        calibrator = create(method, len(CLASSES), spatial_dims=2, image_channels=3, ignore_index=VOID)
        training = {"epochs": recipe.calibrator_epochs, "seed": source.job.seed, "device": source.device}
        if method in _ON_DEVICE:
            more = training if method in _LEARNED else {}
            calibrator.to(source.device).fit(near["fit"], validation=near["check"], **more)
        else:
            calibrator.fit(fit, validation=check)
        fitted[NAMES[method]] = calibrator
        timings[f"fit {NAMES[method]}"] = perf_counter() - started
        print(f"{source.job.name}: {NAMES[method]} fitted in {timings[f'fit {NAMES[method]}']:.1f} s", flush=True)
    return fitted


def fit_grouped(
    source: Source, recipe: Recipe, timings: dict[str, float], notes: dict[str, Any]
) -> dict[str, Calibrator]:
    """TS, LTS and what lies between, on all frames, with epochs and share from blocks of time that were left out."""
    started = perf_counter()
    names = names_of(source.data, "val", recipe)
    cases = source.on_device(list(source.stream("val", names)))
    seed = source.job.seed
    choice = choose(cases, epochs=recipe.calibrator_epochs, folds=recipe.folds, seed=seed, device=source.device)
    timings["cross-validation"] = perf_counter() - started
    started = perf_counter()
    one, local = temperature_pair(cases, epochs=choice.epochs, seed=seed, device=source.device)
    timings["fit TS and LTS"] = perf_counter() - started
    notes |= {"fit": list(names), "epochs": choice.epochs, "best_epochs": list(choice.best_epochs)}
    notes |= {"share": choice.share, "nll": {f"{share:.1f}": nll for share, nll in choice.nll.items()}}
    print(
        f"{source.job.name}: {choice.epochs} epochs (best {choice.best_epochs}), {choice.share:.1f} of the way to LTS"
    )
    return {"TS": one, "LTS": local, "LTS shrunk": ShrunkTemperature(one, local, choice.share)}


def count_changes(cases: Iterator[Case], calibrators: Mapping[str, Calibrator | None]) -> dict[str, tuple[int, int]]:
    """For each calibrator: how many of how many pixels have another label than that of the raw logits."""
    counts = {name: (0, 0) for name, calibrator in calibrators.items() if calibrator is not None}
    for case in cases:
        raw = torch.cat([slab.logits for slab in slabs_of(case, len(CLASSES))], dim=2)
        before = {device: raw.to(device).argmax(1) for device in {_place(one) for one in calibrators.values()}}
        for name, calibrator in calibrators.items():
            if calibrator is None:
                continue
            after = torch.cat([logits.argmax(1) for _, logits in calibrator.calibrate_case(case)], dim=1)
            changed, pixels = counts[name]
            counts[name] = changed + int((after != before[after.device]).sum()), pixels + after.numel()
    return counts


def _place(calibrator: Calibrator | None) -> torch.device:
    return torch.device("cpu") if calibrator is None else calibrator.fitted.device
