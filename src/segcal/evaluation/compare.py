"""`segcal.compare`: methods fitted on the same images and measured on the same other images, with their costs."""

from __future__ import annotations

import ctypes
import gc
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pandas as pd
import torch

from segcal.calibrators import Calibrator, load
from segcal.cases import as_collection
from segcal.engines.run import write_result
from segcal.evaluation.measure import Evaluation
from segcal.evaluation.methods import UNCALIBRATED, heads_of, stream_for
from segcal.evaluation.protocol import Protocol, ProtocolSettings
from segcal.evaluation.results import Results
from segcal.evaluation.run import identity_of, measure_all, measure_folder
from segcal.files import staged_folder, write_json
from segcal.regions import RegionFunction, chosen_regions
from segcal.types import Case, InputError, public

if TYPE_CHECKING:
    from segcal.data.folders.folder import Folder
    from segcal.engines import Run

PAPER = ("ts", "ibts", "lts", "isotonic", "vector", "ets", "dirichlet")
"""The methods of the paper's tables."""

_TAKEN = ("floor", "portraits", "channels")  # folders beside those of the calibrators
_COSTS = ("parameters", "seconds", "memory", "keeps_labels", "changed", "accuracy", "miou")
_PROCESS, _RESET_PEAK = Path("/proc/self"), "5"
_FAILURES = (InputError, ArithmeticError, MemoryError, RuntimeError, np.linalg.LinAlgError)
"""Failures of one method that data, numerics or the machine can cause; programming errors are not caught."""


@dataclass(frozen=True)
class Fit:
    """The outcome of fitting one method.

    Attributes:
        calibrator: The fitted calibrator, or None if the fit failed.
        memory: Growth of the resident memory of the process during the fit, in bytes; None if it cannot be measured.
        failure: Why the fit failed, or None.
    """

    calibrator: Calibrator | None
    memory: int | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Comparison:
    """The outcome of `segcal.compare`.

    Attributes:
        results: Results of the uncalibrated scores (UC) and of every method that could be fitted.
        fits: Outcome of each fit, failures included.
    """

    results: Results
    fits: Mapping[str, Fit]

    @property
    def calibrators(self) -> dict[str, Calibrator]:
        """The fitted calibrators."""
        return _fitted(self.fits)

    @property
    def changed(self) -> dict[str, float]:
        """Share of the pixels in *All* whose predicted label each method changed."""
        return {name: self.results.settings["fits"][name]["changed"] for name in self.calibrators}

    def to_frame(self) -> pd.DataFrame:
        """Return the costs of each method and its effect on the labels, one row per method.

        Columns `method parameters seconds memory keeps_labels changed accuracy miou failure`: number of learned values,
        seconds and memory of the fit, whether labels are guaranteed to stay the same, the share of labels that changed,
        and the gain in accuracy and mIoU (mean over images, region *All*); NaN for a method that failed.
        """
        return pd.DataFrame(self.records())

    def save(self, path: str | Path) -> None:
        """Write the folder `path`: the results as `Results.load` reads them, each calibrator, and `comparison.json`."""
        with staged_folder(path) as folder:
            self.results.save(folder)
            for name, calibrator in self.calibrators.items():
                calibrator.save(folder / name.lower())
            write_json(folder / "comparison.json", self.records())

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of `to_frame` in plain values, None for what is not known."""
        frame = self.results.frame
        means = frame[frame.region == "all"].groupby(["metric", "method"]).value.mean()
        rows = []
        for name, fit in self.fits.items():
            row: dict[str, Any] = {"method": name, **dict.fromkeys(_COSTS), "failure": fit.failure}
            if (fitted := fit.calibrator) is not None:
                found = (fitted.learned, fitted.fit_report_.seconds, fit.memory, fitted.preserves_labels)
                gains = (float(means[metric, name] - means[metric, UNCALIBRATED]) for metric in ("accuracy", "miou"))
                values = (*found, self.changed[name], *gains)
                row |= {
                    cost: None if isinstance(value, float) and np.isnan(value) else value
                    for cost, value in zip(_COSTS, values, strict=True)
                }
            rows.append(row)
        return rows


@public
def compare(
    fit_cases: Iterable[Case],
    test_cases: Iterable[Case],
    calibrators: Mapping[str, Calibrator],
    protocol: Protocol | None = None,
    *,
    validation: Iterable[Case] | None = None,
    fit_settings: Mapping[str, Any] | None = None,
    regions: Sequence[str] | Mapping[str, RegionFunction] | None = None,
    **settings: Unpack[ProtocolSettings],
) -> Comparison:
    """Fit every calibrator on the same cases; measure all of them and the uncalibrated scores on the same other cases.

    A calibrator that cannot be fitted to these data is reported as such, and the others continue; it is an error only
    if none is left.

    Args:
        fit_cases: Cases to fit on.
        test_cases: Cases to measure on.
        calibrators: Unfitted calibrators by their name in the tables; they are fitted in place.
        protocol: How calibration is measured. Without it, `num_classes` must be among the settings.
        validation: Cases on which trained methods choose their weights.
        fit_settings: Arguments of `fit` (epochs, learning_rate, ...), passed to the methods that have them.
        regions: Regions to measure, as in `segcal.evaluate`.
        settings: Fields of `segcal.Protocol`, such as `num_classes`, `ignore_index`, `background` and `patch_size`.
    """
    chosen, training = Protocol.given(protocol, settings), dict(fit_settings or {})
    check_calibrators(calibrators)
    check_names(calibrators)
    check_fit_settings(calibrators.values(), training)
    kept, tested = as_collection(fit_cases), as_collection(test_cases)
    checked = None if validation is None else as_collection(validation)
    check_cases(tested, chosen)
    fits = {
        name: measured_fit(
            calibrator, partial(calibrator.fit, kept, validation=checked, **known_settings(calibrator, training))
        )
        for name, calibrator in calibrators.items()
    }
    return Comparison(measure_all(tested, compared(fits), chosen, chosen_regions(regions)), fits)


def compare_folder(
    folder: Folder,
    calibrators: Mapping[str, Calibrator],
    fit: Mapping[str, Callable[[], object]],
    about: Sequence[Any],
    protocol: Protocol,
    run: Run,
    *,
    device: torch.device,
) -> Comparison | None:
    """Fit every method and measure it on the cases of a folder; None where another process has it all.

    Args:
        folder: Cases to measure on.
        calibrators: Unfitted calibrators by their name in the tables; they are fitted in place.
        fit: Fits the calibrator of each name.
        about: Everything else that decides the fits, in values that JSON can hold.
        protocol: How calibration is measured.
        run: How measuring is divided, and where fits and evidence are kept.
        device: Where the fitted methods are measured.
    """
    configs = {name: [calibrator.method, calibrator.config()] for name, calibrator in calibrators.items()}
    plain = Evaluation.of(next(iter(folder)), {UNCALIBRATED: None}, protocol)
    run.begin(*about, configs, *identity_of(plain, folder))
    fits = {name: _kept_fit(run, name, calibrators[name], fit[name]) for name in calibrators}
    for calibrator in (done.calibrator for done in fits.values() if done.calibrator is not None):
        calibrator.to(device)
    results = measure_folder(replace(plain, calibrators=compared(fits)), folder, run)
    return None if results is None else Comparison(results, fits)


def measured_fit(calibrator: Calibrator, fit: Callable[[], object]) -> Fit:
    """Fit a calibrator by calling `fit`, and record a failure and the growth of memory."""
    failure = None
    with memory_growth() as growth:
        try:
            fit()
        except _FAILURES as error:
            failure = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return Fit(None, failure=failure) if failure else Fit(calibrator, growth.peak)


def compared(fits: Mapping[str, Fit]) -> dict[str, Calibrator | None]:
    """Return what is measured: the uncalibrated scores and every method that could be fitted; raise if none could."""
    calibrators = _fitted(fits)
    if not calibrators:
        failures = [str(fit.failure) for fit in fits.values()]
        raise InputError(f"none of {len(fits)} methods could be fitted; {next(iter(fits))} says: {failures[0]}")
    return {UNCALIBRATED: None, **calibrators}


def known_settings(calibrator: Calibrator, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that this calibrator's `fit` takes."""
    known = calibrator.fit_settings - {"watch"}
    return {name: value for name, value in settings.items() if name in known}


def check_fit_settings(calibrators: Iterable[Calibrator], settings: Mapping[str, Any]) -> None:
    """Raise if no calibrator has one of the settings."""
    known = {name for calibrator in calibrators for name in known_settings(calibrator, settings)}
    if unknown := [name for name in settings if name not in known]:
        raise InputError(f"none of the methods has the setting '{unknown[0]}' of fit; leave it out")


def check_calibrators(calibrators: object) -> None:
    """Raise unless there is a mapping from names to calibrators."""
    values = list(calibrators.values()) if isinstance(calibrators, Mapping) else [calibrators]
    if wrong := [type(value).__name__ for value in values if not isinstance(value, Calibrator)]:
        raise InputError(
            f"calibrators must be unfitted calibrators by name, got {wrong[0]}; build them by name: "
            '{"TS": segcal.create("ts", num_classes=...)}'
        )


def check_names(names: Collection[str]) -> None:
    """Raise unless there are methods, with names that clash neither with the uncalibrated scores nor with folders."""
    if not names:
        raise InputError("at least one method is needed to compare, got none; name some")
    for name in names:
        if name.upper() == UNCALIBRATED or not name.replace("-", "").replace("_", "").isalnum():
            raise InputError(
                f"a method must have a name of letters, digits, - and _ that is not {UNCALIBRATED}, which stands for "
                f"the uncalibrated scores, got '{name}'; rename it"
            )
        if name.lower() in _TAKEN:
            raise InputError(f"a method cannot be called '{name}', which is a folder in saved results; rename it")
    if len({name.lower() for name in names}) < len(names):
        raise InputError(f"methods must have different names, got {', '.join(names)}; rename one")


def check_cases(cases: Iterable[Case], protocol: Protocol) -> None:
    """Read every case once, so that a bad one is found before hours of fitting."""
    for case in cases:
        for head in heads_of(protocol):
            for _ in stream_for(head.protocol, head.case(case), ()).slabs():
                pass


def _fitted(fits: Mapping[str, Fit]) -> dict[str, Calibrator]:
    return {name: fit.calibrator for name, fit in fits.items() if fit.calibrator is not None}


def _kept_fit(run: Run, name: str, calibrator: Calibrator, fit: Callable[[], object]) -> Fit:
    """Return a fit that is finished already, or do it, and keep it if the run keeps its work."""
    finished = run.fits
    if finished is None:
        return measured_fit(calibrator, fit)
    # the processes of torchrun fit together or not at all
    if not run.engine.share(lambda: finished.result(name, "") is not None):
        done = measured_fit(calibrator, fit)
        if run.engine.is_first:
            with finished.working_on(name, "") as place:
                if done.calibrator is not None:
                    done.calibrator.save(place / "calibrator")
                write_result(place, json.dumps({"memory": done.memory, "failure": done.failure}).encode())
        run.engine.share(lambda: None)
    about = json.loads(finished.result(name, "") or b"{}")
    return Fit(None if about["failure"] else load(finished.place(name) / "calibrator"), **about)


class Growth:
    """Growth of memory in bytes; None inside the block, and on systems that do not report it."""

    peak: int | None = None


@contextmanager
def memory_growth() -> Iterator[Growth]:
    """Measure how far the resident memory of this process rises inside the block; blocks must not be nested.

    Linux keeps a high-water mark of the resident memory, which is exact between two resets; polling would miss peaks.
    It counts everything the process holds, including pages of memory-mapped files and code compiled on first use.

    Examples:
        >>> with memory_growth() as growth:
        ...     held = bytearray(50_000_000)
        >>> growth.peak is None or growth.peak > 45_000_000
        True
    """
    growth = Growth()
    _give_back()
    with suppress(OSError):
        (_PROCESS / "clear_refs").write_text(_RESET_PEAK)
        before = _status("VmRSS")
    try:
        yield growth
    finally:
        with suppress(OSError, NameError):
            growth.peak = max(0, _status("VmHWM") - before)


def _give_back() -> None:
    """Return freed memory to the system; reused without being counted, it would be missing from the next growth."""
    gc.collect()
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _status(name: str) -> int:
    lines = (_PROCESS / "status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])
