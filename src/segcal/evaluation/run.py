"""`segcal.evaluate`: cases x calibrators x regions -> Results, the paper's evaluation (Sec. 4), one row per image.

A folder is measured by any engine. The evidence of a case depends on the case alone and is added up in the order of the
cases, so that the results are the same bits on every engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from segcal.calibrators import Calibrator
from segcal.cases import no_cases
from segcal.cases.collections import Pair, cases_of, known_cases
from segcal.evaluation.builder import ResultsBuilder, mean_tables
from segcal.evaluation.limits import limits as oracle_limits
from segcal.evaluation.measure import CaseEvidence, Evaluation
from segcal.evaluation.methods import Method, MetricFunction, chosen_metrics, heads_of, methods_of, settings_of
from segcal.evaluation.protocol import Protocol, ProtocolSettings
from segcal.evaluation.results import Results
from segcal.functional.checks import ignored_labels
from segcal.regions import Region, RegionFunction, chosen_regions
from segcal.types import Case, public

if TYPE_CHECKING:  # not needed for cases in memory
    from segcal.data.folders.folder import Folder
    from segcal.engines import Run


@public
def evaluate(
    cases: Iterable[Case | Pair],
    calibrators: Mapping[str, Method] | Calibrator,
    protocol: Protocol | None = None,
    *,
    regions: Sequence[str] | Mapping[str, RegionFunction] | None = None,
    metrics: Mapping[str, MetricFunction] | None = None,
    **settings: Unpack[ProtocolSettings],
) -> Results:
    """Measure how well calibrated each method is on the same cases, regions and patches.

    Args:
        cases: Cases to measure on, or pairs `(logits, labels)` of arrays or tensors; iterated once, unless `limits` is
            set.
        calibrators: Methods by their name in the tables: fitted calibrators, functions from logits `[1, L, *S]` to
            calibrated logits, or None for the uncalibrated scores. One calibrator is compared with the uncalibrated
            scores, and its own settings are the default.
        protocol: How calibration is measured. Without it, `num_classes` must be among the settings.
        regions: Regions to measure. By default all of `segcal.regions.REGIONS`; a sequence of names selects among them
            (*All* is always measured); a mapping from names to functions adds regions of your own. A function takes a
            case and its labels `[1, *S]` (-1 where ignored) and returns a Bool mask `[1, *S]`.
        metrics: Metrics of your own: functions by name. A function takes the calibrated probabilities `[L, *S]` of a
            case, a float32 tensor on the CPU that it must not change, and its labels `[*S]`, -1 where a pixel is
            ignored or outside the region, and returns a finite number. It is called once for each case, method and
            region that has pixels, except the Local patches; for a sigmoid head once for each channel as a problem of
            two classes `[2, *S]`, which is then averaged over channels. Its values are rows of `to_frame()` and means
            over images in the tables, neither marked nor tested because no direction is known. With `floor` it is
            called again with the drawn labels. The probabilities of one case and method are in memory at a time.
        settings: Fields of `segcal.Protocol`, such as `num_classes`, `ignore_index`, `background` and `patch_size`.

    Returns:
        One row per case, method, region and metric; metrics pooled over all pixels; the paper's table.
    """
    chosen = Protocol.given(protocol, settings if protocol else settings_of(calibrators, settings))
    return measure_all(cases, methods_of(calibrators), chosen, chosen_regions(regions), chosen_metrics(metrics))


def measure_all(
    cases: Iterable[Case | Pair],
    calibrators: Mapping[str, Method],
    protocol: Protocol,
    regions: Mapping[str, Region],
    metrics: Mapping[str, MetricFunction] | None = None,
) -> Results:
    """Measure every case in this process."""
    known = known_cases(cases) if protocol.limits else cases
    remaining = cases_of(known)
    first = next(remaining, None)
    if first is None:
        raise no_cases(cases)
    builder = ResultsBuilder(Evaluation.of(first, calibrators, protocol, regions, metrics))
    for case in chain([first], remaining):
        builder.add(builder.evaluation.measure(case))
    return _with_limits(builder, cast(Iterable[Case], known))


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
    run.begin(*identity_of(evaluation, folder))
    return measure_folder(evaluation, folder, run, first)


def measure_folder(evaluation: Evaluation, folder: Folder, run: Run, first: Case | None = None) -> Results | None:
    """Return the results of all cases, or None where another process has them."""
    builder = ResultsBuilder(evaluation)
    known = {first.name: first} if first is not None and run.engine.is_alone else {}  # not sent to other processes
    if run.engine.is_alone and run.finished is None:  # nothing needs the evidence of single cases
        for case in run.track(folder):
            builder.add(evaluation.measure(case))
    else:
        for result in run.map(_MeasureCase(evaluation, folder, known), folder.identities()):
            builder.add(CaseEvidence.from_bytes(result))
    return _with_limits(builder, folder) if run.engine.is_first else None


def _with_limits(builder: ResultsBuilder, cases: Iterable[Case]) -> Results:
    """Return the results, with what temperatures chosen with the labels would reach where the protocol asks for it."""
    results, protocol = builder.results(), builder.evaluation.protocol
    if not protocol.limits:
        return results
    frames = {head.name: oracle_limits(head.cases(cases), head.protocol) for head in heads_of(protocol)}
    channels = {name: replace(own, limits_frame=frames[name]) for name, own in results.channels.items()}
    return replace(results, limits_frame=mean_tables(list(frames.values())), channels=channels)


def identity_of(evaluation: Evaluation, folder: Folder) -> list[Any]:
    """Return everything that decides the numbers except the files of the cases, in values that JSON can hold."""
    settings = {**vars(evaluation.protocol), "ignore_index": ignored_labels(evaluation.protocol.ignore_index)}
    kept = {name: method for name, method in evaluation.calibrators.items() if isinstance(method, Calibrator)}
    methods = {name: kept[name].identity() if name in kept else None for name in evaluation.calibrators}
    return [settings, methods, list(evaluation.regions), evaluation.majority, list(folder.names)]


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
