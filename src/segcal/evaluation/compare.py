"""A fair fight: methods fitted on the same images and measured on the same others, with what each of them costs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from segcal.calibrators import Calibrator
from segcal.cases import labels_of, reread, slabs_of
from segcal.evaluation.memory import memory_growth
from segcal.evaluation.results import Results
from segcal.evaluation.run import Protocol, evaluate
from segcal.files import staged_folder, write_json
from segcal.functional.checks import IGNORED
from segcal.functional.probability import predicted_labels
from segcal.regions import boundary, foreground
from segcal.types import Case, IgnoreIndex, InputError, Mask

PAPER = ("ts", "ibts", "lts", "isotonic", "vector", "ets", "dirichlet")
"""The methods of the paper's tables."""

UNCALIBRATED = "UC"
_TAKEN = ("floor", "portraits")  # folders beside those of the calibrators
_NOT_SETTINGS = ("cases", "validation", "watch")
_FAILURES = (InputError, ArithmeticError, MemoryError, RuntimeError, np.linalg.LinAlgError)
"""What data, numbers and machines can do to one method; a slip in a program is not among them."""


@dataclass(frozen=True)
class Fit:
    """What came of fitting one method.

    Attributes:
        calibrator: The fitted calibrator, or None if the fit failed.
        memory: How far the resident memory of the process rose meanwhile, in bytes; None where it cannot be told.
        failure: Why there is no calibrator.
    """

    calibrator: Calibrator | None
    memory: int | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Comparison:
    """The outcome of `segcal.evaluation.compare`.

    Attributes:
        results: Of the uncalibrated scores (UC) and of every method that could be fitted.
        fits: What came of fitting each method, also of those that could not be fitted.
        changed: Share of the measured pixels (region *All*) whose predicted label each method changed.
    """

    results: Results
    fits: Mapping[str, Fit]
    changed: Mapping[str, float]

    @property
    def calibrators(self) -> dict[str, Calibrator]:
        """The fitted calibrators."""
        return _fitted(self.fits)

    def to_frame(self) -> pd.DataFrame:
        """What each method costs and does to the labels, one row per method.

        Columns `method parameters seconds memory keeps_labels changed accuracy miou failure`: the number of learned
        values, the seconds and the memory of the fit, whether labels are guaranteed to stay, the share of them that did
        not, and by how much accuracy and mIoU (mean over images, region *All*) rose; NaN for a method that failed.
        """
        return pd.DataFrame([self._row(name, fit) for name, fit in self.fits.items()])

    def save(self, path: str | Path) -> None:
        """Write the folder `path`: the results as `Results.load` reads them, each calibrator, and `comparison.json`."""
        with staged_folder(path) as folder:
            self.results.save(folder)
            for name, calibrator in self.calibrators.items():
                calibrator.save(folder / name.lower())
            write_json(folder / "comparison.json", self.records())

    def records(self) -> list[dict[str, Any]]:
        """The rows of `to_frame` in plain values, None for NaN."""
        rows = self.to_frame().astype(object).to_dict(orient="records")
        return [{str(name): _plain(value) for name, value in row.items()} for row in rows]

    def _row(self, name: str, fit: Fit) -> dict[str, Any]:
        nan = float("nan")
        row = {"method": name, "parameters": nan, "seconds": nan, "memory": nan, "keeps_labels": None}
        row |= {"changed": nan, "accuracy": nan, "miou": nan, "failure": fit.failure}
        if fit.calibrator is not None:
            row |= {
                "parameters": fit.calibrator.learned,
                "seconds": fit.calibrator.fit_report_.seconds,
                "memory": nan if fit.memory is None else fit.memory,
                "keeps_labels": fit.calibrator.preserves_labels,
                "changed": self.changed[name],
                "accuracy": self._gain(name, "accuracy"),
                "miou": self._gain(name, "miou"),
            }
        return row

    def _gain(self, name: str, metric: str) -> float:
        """By how much the mean over images rose above that of the uncalibrated scores."""
        frame = self.results.frame
        means = frame[(frame.region == "all") & (frame.metric == metric)].groupby("method").value.mean()
        return float(means[name] - means[UNCALIBRATED])


def compare(
    fit_cases: Iterable[Case],
    test_cases: Iterable[Case],
    calibrators: Mapping[str, Calibrator],
    *,
    validation: Iterable[Case] | None = None,
    fit_settings: Mapping[str, Any] | None = None,
    **protocol: Any,
) -> Comparison:
    """Fit every calibrator on the same cases, and measure all of them, and the scores as they are, on the same others.

    A calibrator that cannot be fitted to these data is reported as such, and the others go on; it is an error only if
    none is left.

    Args:
        fit_cases: What to learn from.
        test_cases: What to measure on.
        calibrators: Not yet fitted, by the name they have in the tables; they are fitted in place.
        validation: What methods that choose among weights choose them on.
        fit_settings: Arguments of `fit` (epochs, learning_rate, ...), given to those methods that know them.
        protocol: How to measure: the fields of `segcal.evaluation.run.Protocol`; `num_classes` is needed.
    """
    settings = dict(fit_settings or {})
    check_names(calibrators)
    check_fit_settings(calibrators.values(), settings)
    measured_by = Protocol(**protocol)
    kept, tested = reread(fit_cases), reread(test_cases)
    checked = None if validation is None else reread(validation)
    look_through(tested, measured_by.num_classes, measured_by.ignore_index)
    fits = {
        name: measured_fit(
            calibrator, partial(calibrator.fit, kept, validation=checked, **known_settings(calibrator, settings))
        )
        for name, calibrator in calibrators.items()
    }
    return measured(fits, tested, **protocol)


def measured_fit(calibrator: Calibrator, fit: Callable[[], object]) -> Fit:
    """Fit a calibrator by calling `fit`; a failure, and how far memory grew, are noted."""
    failure = None
    with memory_growth() as growth:
        try:
            fit()
        except _FAILURES as error:
            failure = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return Fit(None, failure=failure) if failure else Fit(calibrator, growth.peak)


def measured(fits: Mapping[str, Fit], cases: Collection[Case], **protocol: Any) -> Comparison:
    """Measure the scores as they are and every method that could be fitted; refuse if there is none."""
    calibrators = _fitted(fits)
    if not calibrators:
        failures = [str(fit.failure) for fit in fits.values()]
        raise InputError(f"none of {len(fits)} methods could be fitted; {next(iter(fits))} says: {failures[0]}")
    results = evaluate(cases, {UNCALIBRATED: None, **calibrators}, **protocol)
    moving = {name: calibrator for name, calibrator in calibrators.items() if not calibrator.preserves_labels}
    changed = {**dict.fromkeys(calibrators, 0.0), **_changed(moving, cases, Protocol(**protocol))}
    return Comparison(results, fits, changed)


def known_settings(calibrator: Calibrator, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that this calibrator's `fit` takes."""
    known = set(inspect.signature(calibrator.fit).parameters).difference(_NOT_SETTINGS)
    return {name: value for name, value in settings.items() if name in known}


def check_fit_settings(calibrators: Iterable[Calibrator], settings: Mapping[str, Any]) -> None:
    """Raise if a setting is known to none of the calibrators."""
    known = {name for calibrator in calibrators for name in known_settings(calibrator, settings)}
    if unknown := [name for name in settings if name not in known]:
        raise InputError(f"none of the methods has the setting '{unknown[0]}' of fit; leave it out")


def check_names(names: Collection[str]) -> None:
    """Raise unless there are methods, whose names are neither that of the uncalibrated scores nor that of a file."""
    if not names:
        raise InputError("at least one method is needed to compare, got none; name some")
    for name in names:
        if name.upper() == UNCALIBRATED or not name.replace("-", "").replace("_", "").isalnum():
            raise InputError(
                f"a method must have a name of letters, digits, - and _ that is not {UNCALIBRATED}, which stands for "
                f"the uncalibrated scores, got '{name}'; rename it"
            )
        if name.lower() in _TAKEN:
            raise InputError(f"a method cannot be called '{name}', as results have a folder of that name; rename it")
    if len({name.lower() for name in names}) < len(names):
        raise InputError(f"methods must have different names, got {', '.join(names)}; rename one")


def look_through(cases: Iterable[Case], num_classes: int, ignore_index: IgnoreIndex) -> None:
    """Read every case once, so that a bad one is found now and not after hours of fitting."""
    for case in cases:
        labels_of(case, num_classes, ignore_index)
        for _ in slabs_of(case, num_classes):
            pass


def _fitted(fits: Mapping[str, Fit]) -> dict[str, Calibrator]:
    return {name: fit.calibrator for name, fit in fits.items() if fit.calibrator is not None}


def moved_labels(calibrator: Calibrator, case: Case) -> Mask:
    """Where a calibrator changes the label that a case's scores predict: `[1, *S]`, on the CPU."""
    parts = [
        predicted_labels(logits) != predicted_labels(slab.logits[:, :, slab.inner])
        for slab, logits in calibrator.calibrate_case(case)
    ]
    return torch.cat([part.cpu() for part in parts], dim=1)


def _changed(calibrators: Mapping[str, Calibrator], cases: Iterable[Case], settings: Protocol) -> dict[str, float]:
    """Share of the pixels of the region *All* whose label each calibrator changes."""
    if not calibrators:
        return {}
    changed, pixels = dict.fromkeys(calibrators, 0), 0
    for case in cases:
        inside = _inside(case, settings)
        pixels += int(inside.sum())
        for name, calibrator in calibrators.items():
            changed[name] += int((moved_labels(calibrator, case) & inside).sum())
    return {name: count / pixels if pixels else float("nan") for name, count in changed.items()}


def _inside(case: Case, settings: Protocol) -> Mask:
    """The region *All* of a case, as `evaluate` takes it."""
    labels = labels_of(case, settings.num_classes, settings.ignore_index)
    near = boundary(labels, IGNORED, width=settings.boundary_width, ball=settings.boundary_ball)
    return foreground(labels, IGNORED, background=settings.background, near=near)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and np.isnan(value):
        return None
    return value.item() if isinstance(value, np.generic) else value
