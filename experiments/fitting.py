"""Steps that experiments share: fit each method of the table, and count the labels that it changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from segcal.calibrators import (
    Calibrator,
    DirichletCalibration,
    FitReport,
    LocalTemperatureScaling,
    TemperatureScaling,
    create,
)
from segcal.calibrators.local import Preset
from segcal.calibrators.shared.survey import summed_nll
from segcal.functional.pixels import moved_labels
from segcal.types import Case

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
SEARCHED = "DirODIR (searched)"
"""DirODIR with the penalty, one for weights and biases, of least NLL on the validation cases."""
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
"""The first is the default, and the paper's."""
LEARNED = ("ibts", "lts")
"""Methods that are trained, in one of two forms: segcal's, or the paper's with `preset="paper"`."""
_HELD = 16 << 30  # bytes of cases that are held on a GPU


def fit_methods(
    wanted: Iterable[str],
    fit: Sequence[Case],
    check: Sequence[Case],
    *,
    about: Mapping[str, Any],
    training: Mapping[str, Any],
    rates: Sequence[float | None] = (None,),
    preset: Preset = "default",
    device: str,
    timings: dict[str, float],
) -> dict[str, Calibrator]:
    """Each method by the table's name, fitted on the same cases.

    Args:
        wanted: segcal's names.
        fit: What to fit on.
        check: What the epoch, and the learning rate where there are several, of the trained ones are chosen by.
        about: What the calibrators must know of the data.
        training: Arguments of the training of IBTS and LTS.
        rates: Learning rates to try; None for that of the preset.
        preset: Form of IBTS and LTS.
        device: Where the methods are fitted.
        timings: Is told how long each took.
    """
    fitted, moved = dict[str, Calibrator](), (on_device(fit, device), on_device(check, device))
    for method in wanted:
        started = perf_counter()
        learned = method in LEARNED
        own: dict[str, Any] = {**about, "preset": preset} if learned else {**about}
        settings: dict[str, Any] = {"device": device, **training} if learned else {}
        best, rate = best_of_rates(method, *moved, own, settings, rates if learned else (None,), device)
        fitted[NAMES[method]] = best
        timings[f"fit {NAMES[method]}"] = perf_counter() - started
        _print_fit(NAMES[method], best, f"learning rate {rate or '-'}")
        if method == "dirichlet":
            started = perf_counter()
            fitted[SEARCHED] = searched = _searched_dirichlet(best, *moved, about, device)
            timings[f"fit {SEARCHED}"] = perf_counter() - started
            _print_fit(SEARCHED, searched, f"penalty {searched.off_diagonal_penalty:g}")
    return fitted


def best_of_rates(
    method: str,
    fit: Sequence[Case],
    check: Sequence[Case],
    about: Mapping[str, Any],
    settings: Mapping[str, Any],
    rates: Sequence[float | None],
    device: str,
) -> tuple[Calibrator, float | None]:
    """Fit a method at each rate with the settings that it has; return the one of least NLL on `check`, and its rate."""

    def attempt(rate: float | None) -> Calibrator:
        calibrator = create(method, **about).to(device)
        known = {name: value for name, value in settings.items() if name in calibrator.fit_settings}
        own: dict[str, Any] = {"learning_rate": rate} if "learning_rate" in calibrator.fit_settings else {}
        return calibrator.fit(fit, validation=check, **known, **own)

    attempts = [(attempt(rate), rate) for rate in rates]
    return min(attempts, key=lambda pair: pair[0].fit_report_.details.get("validation_nll") or 0.0)


def _searched_dirichlet(
    first: Calibrator, fit: Sequence[Case], check: Sequence[Case], about: Mapping[str, Any], device: str
) -> DirichletCalibration:
    """Grid search of one penalty, on weights and biases alike, by the NLL of `check`; `first` has the first penalty."""
    tried = dict[float, tuple[float, DirichletCalibration]]()
    for penalty in PENALTIES:
        own: dict[str, Any] = {"off_diagonal_penalty": penalty, "bias_penalty": penalty}
        one = deepcopy(first) if penalty == PENALTIES[0] else create("dirichlet", **about, **own).to(device).fit(fit)
        assert isinstance(one, DirichletCalibration)
        tried[penalty] = one.mean_nll(check), one
    _, best = min(tried.values(), key=lambda found: found[0])
    search = [{"penalty": penalty, "validation_nll": nll} for penalty, (nll, _) in tried.items()]
    best.fit_report_ = replace(best.fit_report_, details={**best.fit_report_.details, "search": search})
    return best


def _print_fit(name: str, calibrator: Calibrator, chosen: str) -> None:
    report = calibrator.fit_report_
    print(
        f"  {name} fitted in {report.seconds:.1f} s: NLL {report.nll_before:.5f} -> {report.nll_after:.5f}, "
        f"{report.steps} steps, {chosen}; {' '.join(report.warnings)}",
        flush=True,
    )


def floored(local: LocalTemperatureScaling, one: TemperatureScaling, cases: Sequence[Case]) -> LocalTemperatureScaling:
    """The same local temperatures, but none below `min(1, T_TS)`, the floor of `ContextualTemperatureScaling`.

    No pixel becomes more confident than the network or temperature scaling makes it. The report is of the given cases.
    """
    other, (low, high) = deepcopy(local), local.bounds
    other.bounds = (max(low, min(1.0, one.fit_report_.details["temperature"])), high)
    other.fit_report_ = report_of(other, cases)
    return other


def report_of(calibrator: Calibrator, cases: Sequence[Case]) -> FitReport:
    """The report of a calibrator that was made of a fitted one: what it does to the cases that one was fitted on."""
    nll, pixels = summed_nll(calibrator, calibrator.stream(cases))
    return replace(calibrator.fit_report_, nll_after=nll / pixels, warnings=())


def on_device(cases: Sequence[Case], device: str) -> Sequence[Case]:
    """Cases whose logits and images, if any, are held on a GPU; those for the CPU, or too many, stay as they are."""
    if device == "cpu" or not cases or len(cases) * _bytes(cases[0]) > _HELD:
        return cases
    return [
        replace(
            case,
            logits=torch.as_tensor(case.logits, device=device),
            image=None if case.image is None else torch.as_tensor(case.image, device=device),
        )
        for case in cases
    ]


def _bytes(case: Case) -> int:
    return sum(torch.as_tensor(part).nbytes for part in (case.logits, case.image) if part is not None)


def count_changes(cases: Iterable[Case], calibrators: Mapping[str, Calibrator]) -> dict[str, tuple[int, int]]:
    """For each calibrator: how many of how many pixels have another label than that of the raw logits."""
    counts = dict.fromkeys(calibrators, (0, 0))
    for case in cases:
        for name, calibrator in calibrators.items():
            changed, pixels = counts[name]
            for part in calibrator.calibrate_case(case):
                scores, raw = part.logits()[0].flatten(1), part.raw[0].flatten(1)
                changed, pixels = changed + moved_labels(scores, raw), pixels + raw.shape[1]
            counts[name] = changed, pixels
    return counts
