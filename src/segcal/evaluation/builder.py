"""The evidence of all cases, added up in their order, as the tables of `Results`."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

import numpy as np
import pandas as pd
import torch

from segcal.calibrators import Calibrator
from segcal.evaluation.measure import CaseEvidence, Evaluation, Key, MethodEvidence
from segcal.evaluation.methods import ExclusiveHead, different_backgrounds, leaks, shared_cases
from segcal.evaluation.protocol import background_note, majority_class
from segcal.evaluation.results import Results
from segcal.evaluation.saved import TABLES
from segcal.evidence import Evidence, Histogram
from segcal.evidence.readings import ece_by_bins
from segcal.evidence.statistic import add_cells, empty_cells
from segcal.functional.checks import ignored_labels
from segcal.statistics import Drawing, bootstrap_doubts
from segcal.tables.numbers import number
from segcal.tables.summaries import PooledMetrics, pooled_curves, pooled_metrics
from segcal.text import warn_caller
from segcal.types import Array, Case, InputError
from segcal.version import __version__

BINS = range(5, 101)
"""Numbers of bins for which ECE is computed."""

_WITHOUT_BACKGROUND = ("ece", "nll", "accuracy")
"""Metrics that are saved as they are without a class that may be the background."""


class ResultsBuilder:
    """Adds the evidence of cases, which must come in the order of the tables, and turns it into `Results`.

    Args:
        evaluation: What was measured.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        self.cases: dict[str, CaseEvidence] = {}
        self._cells: dict[tuple[Key, bool], Histogram] = {}

    def add(self, case: CaseEvidence) -> None:
        """Add the evidence of one case; its fine histograms are summed at once, and not kept."""
        if case.name in self.cases:
            raise InputError(f"case names must be unique, got '{case.name}' twice; rename one")
        for key, own in case.methods.items():
            for marginal, cells in zip((False, True), own.cells, strict=False):
                if (key, marginal) not in self._cells:
                    classes = self.evaluation.heads[0].protocol.num_classes
                    self._cells[key, marginal] = empty_cells(len(own.vectors), classes)
                add_cells(cells, self._cells[key, marginal])
        self.cases[case.name] = case.without_cells()

    def measure(self, cases: Iterable[Case]) -> Self:
        """Measure cases in this process and add their evidence."""
        for case in cases:
            self.add(self.evaluation.measure(case))
        return self

    def fine(self, key: Key, region: int, *, marginal: bool = False) -> Histogram:
        """Return the fine histogram of a region `[L, 65536]` over all cases."""
        return self._cells[key, marginal].of(region)

    def changed(self, method: str) -> float:
        """Return the share of the pixels in *All* whose label a method changed, in all channels together."""
        known = list(self._of(method))
        return sum(own.moved for own in known) / max(sum(own.inside for own in known), 1)

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
        return self._joined(about)

    def _fits(self, content: Mapping[str, str]) -> dict[str, Any]:
        """Return the fit report of each calibrator, as JSON can hold it, and how it treats the cases measured."""
        found = {}
        for name, calibrator in self.evaluation.calibrators.items():
            report = getattr(calibrator, "fit_report_", None)
            if isinstance(calibrator, Calibrator) and report is not None:
                plain = {key: value for key, value in asdict(report).items() if key not in ("names", "fingerprints")}
                about = {"learned": calibrator.learned, "preserves_labels": calibrator.preserves_labels}
                here = {"changed": self.changed(name), "shared_cases": shared_cases(calibrator, content)}
                found[name] = {**plain, **about, **here}
        return found

    def _unnamed_background(self, baseline: str) -> tuple[dict[str, Any], str] | None:
        """Return what is known of a class that covers most of all cases, and a sentence about it.

        None if a background is named, or no class was left out.
        """
        index, names = self.evaluation.majority, self.evaluation.protocol.names
        if index is None:
            return None
        true = [[count for *_, count in own.rows["volume_frame"]] for own in self._of(baseline)]
        pixels = np.sum(true, axis=0)
        if majority_class(pixels) != index:
            return None
        tables, without = _HeadTables(self, self.evaluation.heads[0]), len(self.evaluation.masked)
        found = {
            method: {name: tables.metrics(method, without).values[name] for name in _WITHOUT_BACKGROUND}
            for method in tables.methods
        }
        both, other = (
            f"an ECE of {number('ece', values['ece'])} % and an NLL of {number('nll', values['nll'])}"
            for values in (tables.metrics(baseline, self.evaluation.masked.index("all")).values, found[baseline])
        )
        fraction, text = float(pixels[index] / pixels.sum()), f"{baseline} has {both} over all pixels and {other}"
        about = {"class": index, "name": names[index], "fraction": fraction, "scores": found}
        return about, background_note(index, names[index], fraction, text)

    def _of(self, method: str) -> Iterator[MethodEvidence]:
        """Yield the evidence of a method with true labels, of every case and channel."""
        for case in self.cases.values():
            yield from (own for key, own in case.methods.items() if key.method == method and not key.redrawn)

    def _joined(self, about: Mapping[str, Any]) -> Results:
        """Return the results of the one head, or the mean over several channels with the results of each."""
        tables = [_HeadTables(self, head) for head in self.evaluation.heads]
        names = [own.head.name for own in tables if own.head.channels]
        each = [own.results({**about, "channels": names}) for own in tables]
        if len(each) == 1:
            return each[0]
        channels = {}
        for k, (name, own) in enumerate(zip(names, each, strict=True)):
            details = {method: fit["details"].get(f"channel {k}", {}) for method, fit in about["fits"].items()}
            fits = {method: {**fit, "details": details[method]} for method, fit in about["fits"].items()}
            channels[name] = replace(own, settings={**own.settings, "channels": [], "fits": fits})
        whole = {"num_classes": len(names), "activation": self.evaluation.protocol.activation, "class_names": names}
        mean = _mean_over_channels(channels, tables, {**each[0].settings, **whole})
        floors = {name: own.redrawn for name, own in channels.items() if own.redrawn is not None}
        if not floors:
            return replace(mean, channels=channels)
        settings = {**floors[names[0]].settings, **whole}
        redrawn = _mean_over_channels(floors, [replace(own, redrawn=True) for own in tables], settings)
        return replace(mean, channels=channels, redrawn=redrawn)


@dataclass(frozen=True)
class _HeadTables:
    """The tables of a softmax or of one sigmoid channel, with true labels or with those drawn for the floor."""

    builder: ResultsBuilder
    head: ExclusiveHead
    redrawn: bool = False

    def results(self, about: Mapping[str, Any]) -> Results:
        """Return the tables."""
        cases, protocol = self.builder.cases, self.head.protocol
        if self.redrawn:
            protocol = replace(protocol, floor=False, surfaces=False, limits=False)
        rows = {name: list[Sequence[Any]]() for name in TABLES if name != "limits_frame"}
        rows["case_frame"] = [(name, case.group) for name, case in cases.items()]
        for name, case in cases.items():
            for method in self.methods:
                for table, own in case.methods[self.key(method)].rows.items():
                    rows[table] += [(name, method, *row) for row in own]
        for table, row in self._pooled_rows():
            rows[table].append(row)
        settings = {
            **asdict(protocol),
            "ignore_index": list(ignored_labels(protocol.ignore_index)),
            "class_names": list(protocol.names),
            "patch_sizes": sorted({row[2] for row in rows["size_frame"]}),
            "methods": list(self.methods),
            "regions": list(self.builder.evaluation.masked),
            "segcal": __version__,
            "date": datetime.now(UTC).date().isoformat(),
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
            **about,
        }
        if protocol.surfaces:
            left_out = about.get("unnamed_background", {}).get("name", "")  # no structure
            rows["surface_frame"] = [row for row in rows["surface_frame"] if row[2] != left_out]
            settings["surface_background"] = left_out or self._background_name()
            settings["surface_unit"] = " or ".join(dict.fromkeys(case.unit for case in cases.values()))
        measured = {"size_frame": bool(rows["size_frame"]), "surface_frame": protocol.surfaces}
        frames = {name: TABLES[name].frame(own) for name, own in rows.items() if measured.get(name, True)}
        redrawn = None
        if protocol.floor:
            redrawn = replace(self, redrawn=True).results({"warnings": [], "channels": []})
        return Results(settings=settings, redrawn=redrawn, channels={}, **frames)

    def _background_name(self) -> str:
        """Return the class that no surface table has; "" for none."""
        without = [name for k, name in enumerate(self.head.protocol.names) if k not in self.head.structures]
        return "" if self.head.channels or not without else without[0]

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods."""
        return tuple(self.builder.evaluation.calibrators)

    def key(self, method: str) -> Key:
        """Return the key of a method on this head."""
        return Key(method, self.redrawn, self.head.channel)

    def metrics(self, method: str, region: int) -> PooledMetrics:
        """Return the metrics of a method in a region over all pixels of all cases."""
        protocol, key = self.head.protocol, self.key(method)
        cells, marginal = self.builder.fine(key, region), protocol.form == "marginal"
        class_cells = self.builder.fine(key, region, marginal=True) if marginal else None
        return pooled_metrics(self._vectors(method, region), cells, class_cells, protocol.form)

    def top(self, method: str, region: int) -> Histogram:
        """Return the top confidences of a region in each case, by predicted class: `[cases, L, R]`."""
        protocol = self.head.protocol
        vectors = torch.from_numpy(self._vectors(method, region))
        return Evidence.from_vectors(vectors, protocol.num_classes, marginal=protocol.form == "marginal").top

    @property
    def drawing(self) -> Drawing:
        """The bootstrap over cases or groups."""
        cases = self.builder.cases
        return self.head.protocol.drawing(list(cases), [case.group for case in cases.values()])

    def _vectors(self, method: str, region: int) -> Array:
        key = self.key(method)
        return np.stack([case.methods[key].vectors[region] for case in self.builder.cases.values()])

    def _pooled_rows(self) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield metrics over all pixels of all cases, reliability diagrams, and ECE for other numbers of bins."""
        names, drawing = self.head.protocol.names, self.drawing
        for method in self.methods:
            for k, region in enumerate(self.builder.evaluation.masked):
                errors = ece_by_bins(self.builder.fine(self.key(method), k), BINS).tolist()
                for table, rows in (
                    ("pooled_frame", self.metrics(method, k).rows(drawing)),
                    ("curve_frame", pooled_curves(self.top(method, k), names, drawing=drawing)),
                    ("sensitivity_frame", zip(BINS, errors, strict=True)),
                ):
                    yield from ((table, (method, region, *row)) for row in rows)


def _mean_over_channels(
    channels: Mapping[str, Results], tables: Sequence[_HeadTables], settings: Mapping[str, Any]
) -> Results:
    """Return results whose every value is the mean over the channels that have pixels there; pixels are added up.

    Reliability diagrams are not averaged: that of the label "" holds the pixels of all channels, and that of each
    channel all of its pixels. Volumes and surfaces are those of the channels.

    Args:
        channels: Results of each channel, by name, with two classes of which the second is the channel.
        tables: Tables they were made of, for the intervals of the means.
        settings: Settings of the mean.
    """
    names, whole = list(channels), list(channels.values())
    first, drawing = tables[0], tables[0].drawing
    pooled, curves = list[Sequence[Any]](), list[Sequence[Any]]()
    for method in first.methods:
        for k, region in enumerate(first.builder.evaluation.masked):
            mean = PooledMetrics.mean([own.metrics(method, k) for own in tables])
            pooled += [(method, region, *row) for row in mean.rows(drawing)]
            by_channel = _side_by_side([own.top(method, k) for own in tables])
            curves += [(method, region, *row) for row in pooled_curves(by_channel, names, drawing=drawing)]
    volumes = [results.volume_frame.query("label == @name") for name, results in channels.items()]
    surfaces = [results.surface_frame for results in whole if results.surface_frame is not None]
    averaged = ("frame", "patch_frame", "sensitivity_frame", "size_frame")
    means: dict[str, Any] = {
        name: None if getattr(whole[0], name) is None else mean_tables([getattr(own, name) for own in whole])
        for name in averaged
    }
    return replace(
        whole[0],
        **means,
        pooled_frame=TABLES["pooled_frame"].frame(pooled),
        curve_frame=TABLES["curve_frame"].frame(curves),
        volume_frame=pd.concat(volumes, ignore_index=True),
        surface_frame=pd.concat(surfaces, ignore_index=True) if surfaces else None,
        settings=settings,
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
