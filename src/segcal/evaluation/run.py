"""`segcal.evaluate`: cases x calibrators x regions -> Results, the paper's evaluation (Sec. 4), one row per image.

A folder is measured by any engine. The evidence of a case depends on the case alone and is added up in the order of the
cases, so that the results are the same bits on every engine.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
import pandas as pd
import torch

from segcal.calibrators import Calibrator
from segcal.cases import no_cases
from segcal.cases.collections import Pair, cases_of, known_cases
from segcal.evaluation.limits import limits as oracle_limits
from segcal.evaluation.measure import CaseEvidence, Evaluation, Key, MethodEvidence
from segcal.evaluation.methods import (
    ExclusiveHead,
    Method,
    MetricFunction,
    chosen_metrics,
    different_backgrounds,
    heads_of,
    leaks,
    methods_of,
    settings_of,
    shared_cases,
)
from segcal.evaluation.protocol import Protocol, ProtocolSettings, background_note, majority_class
from segcal.evaluation.results import Results
from segcal.evaluation.saved import TABLES
from segcal.evidence import Histogram
from segcal.evidence.readings import ece_by_bins
from segcal.evidence.statistic import add_cells, empty_cells
from segcal.functional.checks import ignored_labels
from segcal.regions import Region, RegionFunction, chosen_regions
from segcal.statistics import bootstrap_doubts
from segcal.tables.numbers import number
from segcal.tables.summaries import RegionTotals, pooled_curves, pooled_metrics
from segcal.text import warn_caller
from segcal.types import Case, InputError, public
from segcal.version import __version__

if TYPE_CHECKING:  # not needed for cases in memory
    from segcal.data.folders.folder import Folder
    from segcal.engines import Run

BINS = range(5, 101)
"""Numbers of bins for which ECE is computed."""

_WITHOUT_BACKGROUND = ("ece", "nll", "accuracy")
"""Metrics that are saved as they are without a class that may be the background."""


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


class ResultsBuilder:
    """Adds the evidence of cases, which must come in the order of the tables, and turns it into `Results`.

    Args:
        evaluation: What was measured.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        self.cases: dict[str, CaseEvidence] = {}
        self._cells: dict[Key, list[Histogram]] = {}

    def add(self, case: CaseEvidence) -> None:
        """Add the evidence of one case; its fine histograms, far larger than the rest, are summed and not kept."""
        if case.name in self.cases:
            raise InputError(f"case names must be unique, got '{case.name}' twice; rename one")
        classes = self.evaluation.heads[0].protocol.num_classes
        for key, own in case.methods.items():
            sums = self._cells.setdefault(key, [empty_cells(len(own.vectors), classes) for _ in own.cells])
            for cells, total in zip(own.cells, sums, strict=True):
                add_cells(cells, total)
        self.cases[case.name] = replace(
            case, methods={key: replace(own, cells=()) for key, own in case.methods.items()}
        )

    def results(self) -> Results:
        """Return the tables, and give the warnings about the cases and methods."""
        evaluation = self.evaluation
        doubts = dict.fromkeys(case.doubt for case in self.cases.values() if case.doubt)
        content = {name: case.fingerprint for name, case in self.cases.items()}
        leaked = leaks(evaluation.calibrators, content, "its scores are optimistic; evaluate on other images")
        serious = [*doubts, *leaked]
        for text in serious:
            warn_caller(text)
        uncalibrated = [name for name, calibrator in evaluation.calibrators.items() if calibrator is None]
        about: dict[str, Any] = {
            "baseline": [*uncalibrated, *evaluation.calibrators][0],
            "fits": self._fits(content),
            "warnings": [
                *serious,
                *evaluation.notes,
                *different_backgrounds(evaluation.calibrators, evaluation.protocol),
                *bootstrap_doubts([case.group for case in self.cases.values()]),
            ],
        }
        if (background := self._unnamed_background(about["baseline"])) is not None:
            about["unnamed_background"], note = background
            about["warnings"].append(note)
        return self._joined({**about, "channels": [head.name for head in evaluation.heads if head.channels]})

    def _fits(self, content: Mapping[str, str]) -> dict[str, Any]:
        """Return the fit report of each calibrator, as JSON can hold it, and how it treats the cases measured."""
        found = {}
        for name, calibrator in self.evaluation.calibrators.items():
            report = getattr(calibrator, "fit_report_", None)
            if isinstance(calibrator, Calibrator) and report is not None:
                plain = {key: value for key, value in asdict(report).items() if key not in ("names", "fingerprints")}
                own = list(self._of(name))
                changed = sum(one.moved for one in own) / max(sum(one.inside for one in own), 1)
                about = {"learned": calibrator.learned, "preserves_labels": calibrator.preserves_labels}
                found[name] = {**plain, **about, "changed": changed, "shared_cases": shared_cases(calibrator, content)}
        return found

    def _unnamed_background(self, baseline: str) -> tuple[dict[str, Any], str] | None:
        """Return what is known of a class that covers most of all cases, and a sentence about it.

        None if a background is named, or no class was left out.
        """
        index, protocol = self.evaluation.majority, self.evaluation.protocol
        if index is None:
            return None
        true = [[count for *_, count in own.rows["volume_frame"]] for own in self._of(baseline)]
        pixels = np.sum(true, axis=0)
        if majority_class(pixels) != index:
            return None
        without = len(self.evaluation.masked)
        scores = {
            method: self._totals(Key(method), without).values(protocol.form) for method in self.evaluation.calibrators
        }
        found = {method: {name: own[name] for name in _WITHOUT_BACKGROUND} for method, own in scores.items()}
        whole = self._totals(Key(baseline), self.evaluation.masked.index("all")).values(protocol.form)
        both, other = (
            f"an ECE of {number('ece', values['ece'])} % and an NLL of {number('nll', values['nll'])}"
            for values in (whole, found[baseline])
        )
        fraction, name = float(pixels[index] / pixels.sum()), protocol.names[index]
        about = {"class": index, "name": name, "fraction": fraction, "scores": found}
        text = f"{baseline} has {both} over all pixels and {other}"
        return about, background_note(index, name, fraction, text)

    def _of(self, method: str) -> Iterator[MethodEvidence]:
        """Yield the evidence of a method with true labels, of every case and channel."""
        for case in self.cases.values():
            yield from (own for key, own in case.methods.items() if key.method == method and not key.redrawn)

    def _totals(self, key: Key, region: int) -> RegionTotals:
        """Return the evidence of a method in a region."""
        cells, *marginal = (total.of(region) for total in self._cells[key])
        vectors = np.stack([case.methods[key].vectors[region] for case in self.cases.values()])
        return RegionTotals(vectors, cells, marginal[0] if marginal else None)

    def _joined(self, about: Mapping[str, Any]) -> Results:
        """Return the results of the one head, or the mean over several channels with the results of each."""
        heads, each = self.evaluation.heads, dict[str, Results]()
        if len(heads) == 1:
            return self._of_head(heads[0], about)
        for k, head in enumerate(heads):
            details = {method: fit["details"].get(f"channel {k}", {}) for method, fit in about["fits"].items()}
            fits = {method: {**fit, "details": details[method]} for method, fit in about["fits"].items()}
            each[head.name] = self._of_head(head, {**about, "channels": [], "fits": fits})
        floors = [own.redrawn for own in each.values() if own.redrawn is not None]
        redrawn = self._mean(floors, {}, redrawn=True) if floors else None
        return replace(self._mean(list(each.values()), about), redrawn=redrawn, channels=each)

    def _of_head(self, head: ExclusiveHead, about: Mapping[str, Any], *, redrawn: bool = False) -> Results:
        """Return the tables of a softmax or of one sigmoid channel, with true labels or those drawn for the floor."""
        cases, protocol = self.cases, head.protocol
        if redrawn:
            protocol = replace(protocol, floor=False, surfaces=False, limits=False)
        rows = {name: list[Sequence[Any]]() for name in TABLES if name != "limits_frame"}
        rows["case_frame"] = [(name, case.group) for name, case in cases.items()]
        for name, case in cases.items():
            for method in self.evaluation.calibrators:
                for table, own in case.methods[Key(method, redrawn, head.channel)].rows.items():
                    rows[table] += [(name, method, *row) for row in own]
        for table, row in self._pooled_rows([head], redrawn=redrawn):
            rows[table].append(row)
        settings = {
            **asdict(protocol),
            "ignore_index": list(ignored_labels(protocol.ignore_index)),
            "class_names": list(protocol.names),
            "patch_sizes": sorted({row[2] for row in rows["size_frame"]}),
            "methods": list(self.evaluation.calibrators),
            "regions": list(self.evaluation.masked),
            "segcal": __version__,
            "date": datetime.now(UTC).date().isoformat(),
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
            **about,
        }
        if protocol.surfaces:
            left_out = about.get("unnamed_background", {}).get("name", "")  # no structure
            without = [name for k, name in enumerate(protocol.names) if k not in head.structures and not head.channels]
            rows["surface_frame"] = [row for row in rows["surface_frame"] if row[2] != left_out]
            settings["surface_background"] = left_out or [*without, ""][0]
            settings["surface_unit"] = " or ".join(dict.fromkeys(case.unit for case in cases.values()))
        measured = {"size_frame": bool(rows["size_frame"]), "surface_frame": protocol.surfaces}
        frames = {name: TABLES[name].frame(own) for name, own in rows.items() if measured.get(name, True)}
        floor = self._of_head(head, {"warnings": [], "channels": []}, redrawn=True) if protocol.floor else None
        return Results(settings=settings, redrawn=floor, channels={}, **frames)

    def _pooled_rows(self, heads: Sequence[ExclusiveHead], *, redrawn: bool) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield metrics over all pixels of all cases, reliability diagrams, and ECE for other numbers of bins.

        Reliability diagrams of several channels are not averaged: that of the label "" holds the pixels of all
        channels, and that of each channel all of its pixels.
        """
        protocol = heads[0].protocol
        drawing = protocol.drawing(list(self.cases), [case.group for case in self.cases.values()])
        names = protocol.names if len(heads) == 1 else [head.name for head in heads]
        for method in self.evaluation.calibrators:
            for k, region in enumerate(self.evaluation.masked):
                totals = [self._totals(Key(method, redrawn, head.channel), k) for head in heads]
                tops = [own.each().top for own in totals]
                top = tops[0] if len(heads) == 1 else _side_by_side(tops)
                errors = ece_by_bins(totals[0].cells, BINS).tolist() if len(heads) == 1 else []
                for table, rows in (
                    ("pooled_frame", pooled_metrics(totals, protocol.form, drawing)),
                    ("curve_frame", pooled_curves(top, names, drawing=drawing)),
                    ("sensitivity_frame", zip(BINS, errors, strict=False)),
                ):
                    yield from ((table, (method, region, *row)) for row in rows)

    def _mean(self, each: Sequence[Results], about: Mapping[str, Any], *, redrawn: bool = False) -> Results:
        """Return results whose every value is the mean over the channels that have pixels there; pixels are added up.

        Volumes and surfaces are those of the channels.
        """
        names = [head.name for head in self.evaluation.heads]
        pooled = {name: list[Sequence[Any]]() for name in ("pooled_frame", "curve_frame")}
        for table, row in self._pooled_rows(self.evaluation.heads, redrawn=redrawn):
            pooled[table].append(row)
        volumes = [own.volume_frame[own.volume_frame.label == name] for name, own in zip(names, each, strict=True)]
        surfaces = [own.surface_frame for own in each if own.surface_frame is not None]
        means: dict[str, Any] = {
            name: mean_tables([getattr(own, name) for own in each])
            for name in ("frame", "patch_frame", "sensitivity_frame", "size_frame")
            if getattr(each[0], name) is not None
        }
        whole = {"num_classes": len(names), "activation": self.evaluation.protocol.activation, "class_names": names}
        return replace(
            each[0],
            **means,
            pooled_frame=TABLES["pooled_frame"].frame(pooled["pooled_frame"]),
            curve_frame=TABLES["curve_frame"].frame(pooled["curve_frame"]),
            volume_frame=pd.concat(volumes, ignore_index=True),
            surface_frame=pd.concat(surfaces, ignore_index=True) if surfaces else None,
            settings={**each[0].settings, **about, **whole},
            redrawn=None,
        )


def mean_tables(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the mean of tables with the same rows, without NaN; pixels are added up."""
    columns, joined = {"value": "mean", "ece": "mean", "pixels": "sum"}, pd.concat(frames)
    wanted = {name: how for name, how in columns.items() if name in joined}
    keys = [name for name in joined if name not in wanted]
    return joined.groupby(keys, sort=False, as_index=False).agg(wanted)[list(joined.columns)]


def _side_by_side(channels: Sequence[Histogram]) -> Histogram:
    """Return the histograms of all pixels of each channel `[cases, C, R]`, in place of those of predicted classes."""
    fields = ([field.sum(dim=-2) for field in own] for own in zip(*channels, strict=True))
    return Histogram(*(torch.stack(parts, dim=-2) for parts in fields))
