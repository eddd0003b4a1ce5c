"""A comparison that is shared between processes: every fit is done once and saved for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from segcal.calibrators import Calibrator, load
from segcal.data.folders.folder import Folder
from segcal.evaluation.compare import UNCALIBRATED, Comparison, Fit, compared, comparison_of, measured_fit
from segcal.evaluation.protocol import Protocol
from segcal.evaluation.run import Measuring
from segcal.evaluation.shared import identity_of_measuring, measure_into, merge_journals
from segcal.files import read_json, staged_file, staged_folder, write_json
from segcal.parts.outputs import Track
from segcal.parts.work import FITS, Part, Sharing, check_same_run, meet, unfinished
from segcal.types import InputError


def compare_folder(
    folder: Folder,
    calibrators: Mapping[str, Calibrator],
    fit: Mapping[str, Callable[[], object]],
    about: Sequence[Any],
    protocol: Protocol,
    sharing: Sharing,
    *,
    device: torch.device,
    track: Track = iter,
) -> Comparison | None:
    """Fit every method and measure it on the cases of a folder, or merge parts; None where another process has it all.

    Args:
        folder: Cases to measure on.
        calibrators: Unfitted calibrators by their name in the tables; they are fitted in place.
        fit: Fits the calibrator of each name.
        about: Everything else that decides the fits, in values that JSON can hold.
        protocol: How calibration is measured.
        sharing: How measuring is divided, and where fits and findings are kept.
        device: Where the fitted methods are measured.
        track: Goes through cases, perhaps with a progress bar.
    """
    configs = {name: [calibrator.method, calibrator.config()] for name, calibrator in calibrators.items()}
    plain = Measuring.of_cases(folder, {UNCALIBRATED: None}, protocol)
    run = sharing.run(*about, configs, *identity_of_measuring(plain, folder))
    if sharing.parts:
        check_same_run(run, sharing.parts)
        fits = {name: _agreed(name, sharing.parts) for name in calibrators}
        measuring = Measuring.of_cases(folder, compared(fits), protocol)
        return comparison_of(fits, measuring, merge_journals(measuring, folder, sharing.parts), folder.names, folder)
    with unfinished(sharing, run) if sharing.out is not None else nullcontext() as kept:
        place = None if kept is None else kept / FITS
        fits = {name: _fitted(place, name, calibrators[name], fit[name]) for name in calibrators}
        for calibrator in (done.calibrator for done in fits.values() if done.calibrator is not None):
            calibrator.to(device)
        measuring = Measuring.of_cases(folder, compared(fits), protocol)
        found = measure_into(kept, measuring, folder, sharing, track)
        return None if found is None else comparison_of(fits, measuring, found, folder.names, folder)


def _fitted(place: Path | None, name: str, calibrator: Calibrator, fit: Callable[[], object]) -> Fit:
    """Return a fit that is saved already, or do it and save it, unless another process was faster."""
    known = None if place is None else _saved(place, name)
    meet()  # the processes of torchrun fit together or not at all
    if known is not None:
        return known
    done = measured_fit(calibrator, fit)
    if place is None:
        return done
    if Part.of_process().index == 1 and _saved(place, name) is None:
        _save(place, name, done)
    meet()
    return _saved(place, name) or done


def _save(place: Path, name: str, done: Fit) -> None:
    """Save a fit; the file that is written last says that it is there."""
    if done.calibrator is not None:
        with staged_folder(place / name) as folder:
            done.calibrator.save(folder)
    with staged_file(place / f"{name}.json") as staging:
        write_json(staging, {"memory": done.memory, "failure": done.failure})


def _saved(place: Path, name: str) -> Fit | None:
    path = place / f"{name}.json"
    if not path.exists():
        return None
    about = read_json(path)
    return Fit(None if about["failure"] else load(place / name), about["memory"], about["failure"])


def _agreed(name: str, parts: Sequence[Path]) -> Fit:
    """Return the fit that all folders of parts have; raise if they have different ones."""
    found = [_saved(path / FITS, name) for path in parts]
    kinds = {(None if one is None or one.calibrator is None else one.calibrator.identity()) for one in found}
    if found[0] is None or len(kinds) > 1:
        raise InputError(
            f"all parts must have been measured with the same fit of '{name}', got several or none; let the parts "
            "share one folder, or fit once ('segcal fit') and measure in parts ('segcal evaluate --part')"
        )
    return found[0]
