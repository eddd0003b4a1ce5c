"""Evaluation, comparison and diagnosis of a folder, by any engine, continued after an interruption.

The evidence of a case depends on the case alone and is added up in the order of the cases, so that the results are the
same bits on every engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from segcal.calibrators import Calibrator, load
from segcal.data.folders.folder import Folder
from segcal.engines import Run
from segcal.engines.run import write_result
from segcal.evaluation.builder import ResultsBuilder
from segcal.evaluation.case_evidence import CaseEvidence
from segcal.evaluation.compare import Comparison, Fit, compared, comparison_of, measured_fit
from segcal.evaluation.diagnosis import ConfidenceSummary, Diagnosis, diagnose_image, diagnosis_of
from segcal.evaluation.measure import Evaluation
from segcal.evaluation.methods import UNCALIBRATED, heads_of_folder
from segcal.evaluation.protocol import Protocol
from segcal.evaluation.results import Results
from segcal.evaluation.run import with_limits
from segcal.functional.checks import ignored_labels
from segcal.types import Case


def evaluate_folder(
    folder: Folder, calibrators: Mapping[str, Calibrator | None], protocol: Protocol, run: Run
) -> Results | None:
    """Measure the cases of a folder; None where another process has the results.

    Args:
        folder: The cases.
        calibrators: Fitted calibrators by their name in the tables; None stands for the uncalibrated scores.
        protocol: How calibration is measured.
        run: How the work is divided and kept.
    """
    first = next(iter(folder))
    evaluation = Evaluation.of(first, calibrators, protocol)
    run.begin(*_identity(evaluation, folder))
    builder = _measured(evaluation, folder, run, first)
    return None if builder is None else with_limits(builder.results(), folder, evaluation.protocol)


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
    run.begin(*about, configs, *_identity(plain, folder))
    fits = {name: _fitted(run, name, calibrators[name], fit[name]) for name in calibrators}
    for calibrator in (done.calibrator for done in fits.values() if done.calibrator is not None):
        calibrator.to(device)
    builder = _measured(replace(plain, calibrators=compared(fits)), folder, run)
    return None if builder is None else comparison_of(fits, builder, folder)


def diagnose_folder(folder: Folder, run: Run, *, device: torch.device) -> dict[str, Diagnosis] | None:
    """Diagnose the cases of a folder; None where another process has the diagnosis.

    Each image is diagnosed by itself. The temperature of the whole data set depends on all pixels at once: the first
    process finds it, in a few passes over the data.

    Returns:
        The diagnosis of each sigmoid channel by its name; that of a softmax has the name "".
    """
    run.begin(folder.num_classes, folder.activation, folder.ignore_index, folder.background, list(folder.names))
    found = [json.loads(result) for result in run.map(_DiagnoseCase(folder, device), folder.identities())]
    if not run.engine.is_first:
        return None
    diagnoses = {}
    for k, head in enumerate(heads_of_folder(folder)):
        images = tuple(ConfidenceSummary(**image[k]) for image in found)
        diagnoses[head.name] = diagnosis_of(images, head.cases(folder), head, device)
    return diagnoses


@dataclass(frozen=True)
class _MeasureCase:
    """Measures the case with a name; one that is read already is not read again."""

    evaluation: Evaluation
    folder: Folder
    known: dict[str, Case]

    def __call__(self, name: str, _: Path | None) -> bytes:
        case = self.known.pop(name, None)
        if case is None:
            (case,) = self.folder.subset([name])
        return self.evaluation.measure(case).to_bytes()


@dataclass(frozen=True)
class _DiagnoseCase:
    """Diagnoses every head of the case with a name."""

    folder: Folder
    device: torch.device

    def __call__(self, name: str, _: Path | None) -> bytes:
        (case,) = self.folder.subset([name])
        heads = heads_of_folder(self.folder)
        found = [diagnose_image(head.case(case), head.protocol, self.device) for head in heads]
        return json.dumps([asdict(image) for image in found]).encode()


def _measured(evaluation: Evaluation, folder: Folder, run: Run, first: Case | None = None) -> ResultsBuilder | None:
    """Return the evidence of all cases, or None where another process has it."""
    builder = ResultsBuilder(evaluation)
    known = {first.name: first} if first is not None and run.engine.is_alone else {}  # not sent to other processes
    if run.engine.is_alone and run.finished is None:  # nothing needs the evidence of single cases
        return builder.measure(run.track(folder))
    for result in run.map(_MeasureCase(evaluation, folder, known), folder.identities()):
        builder.add(CaseEvidence.from_bytes(result))
    return builder if run.engine.is_first else None


def _identity(evaluation: Evaluation, folder: Folder) -> list[Any]:
    """Return everything that decides the numbers except the files of the cases, in values that JSON can hold."""
    settings = {**vars(evaluation.protocol), "ignore_index": ignored_labels(evaluation.protocol.ignore_index)}
    kept = {name: method for name, method in evaluation.calibrators.items() if isinstance(method, Calibrator)}
    methods = {name: kept[name].identity() if name in kept else None for name in evaluation.calibrators}
    return [settings, methods, list(evaluation.regions), list(folder.names)]


def _fitted(run: Run, name: str, calibrator: Calibrator, fit: Callable[[], object]) -> Fit:
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
