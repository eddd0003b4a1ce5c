"""One method on one split with one number of images: fitted, measured, and written; what is there is not done again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from experiments.beyond.methods import Training, method_named
from experiments.beyond.splits import Task
from experiments.command import check_unchanged, versions
from experiments.fitting import count_changes
from segcal import evaluate
from segcal.evaluation.results import Results
from segcal.files import read_json, staged_file, write_json

REPORT = "report.json"
_REPETITIONS = 200


@dataclass(frozen=True)
class Item:
    """One fit and its measurements, in one folder."""

    data: str
    number: int
    images: int
    method: str

    def folder(self, out: Path) -> Path:
        """Return the folder of its report and results."""
        return out / self.data / f"split-{self.number}" / f"images-{self.images}" / self.method.replace(" ", "-")


def measure(task: Task, images: int, method: str, out: Path, training: Training) -> None:
    """Fit on the first images of the split and measure on all that are to be measured."""
    item = Item(task.data, task.number, images, method)
    folder = item.folder(out)
    if (folder / REPORT).exists():
        check_unchanged(folder, read_json(folder / REPORT).get("training", {}), _options(training))
        return
    started, fit = perf_counter(), method_named(method)
    calibrator, notes, report = None, dict[str, Any](), None
    if fit is not None:
        calibrator, notes = fit(task.fit[:images], task.about, training)
        report = asdict(calibrator.fit_report_)
    fitted = perf_counter()
    results = evaluate(task.test, {method: calibrator}, **task.about, repetitions=_REPETITIONS)
    results.save(folder / "results")
    changed = count_changes(task.test, {method: calibrator})[method] if calibrator is not None else (0, 0)
    content = {**asdict(item), "training": _options(training), "notes": notes, "changed": changed, "fit": report}
    parts = {case: task.part_of(case) for case in results.cases()["case"]}
    with staged_file(folder / REPORT) as file:  # last: its presence says that all is done
        write_json(file, {**content, "seconds": fitted - started, "parts": parts, **versions()})
    mean = results.to_frame().query("metric == 'nll' and region == 'all'")["value"].mean()
    print(
        f"{task.data} split {task.number}, {images} images, {method}: fitted in {fitted - started:.1f} s, "
        f"measured in {perf_counter() - fitted:.1f} s, mean NLL {mean:.4f}, labels changed {changed[0]:,}",
        flush=True,
    )


def _options(training: Training) -> dict[str, int | None]:
    """Return the options that must not change between calls."""
    return {"epochs": training.epochs, "crop": training.crop}


def finished(out: Path) -> Iterator[tuple[Item, dict[str, Any], Results]]:
    """Yield what is done: the item, its report and its results."""
    for path in sorted(out.glob(f"*/split-*/images-*/*/{REPORT}")):
        report = read_json(path)
        item = Item(**{name: report[name] for name in ("data", "number", "images", "method")})
        yield item, report, Results.load(path.parent / "results")
