"""The evidence of all cases, added up in their order, as the tables of `Results`."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Self

import numpy as np
import pandas as pd
import torch

from segcal.calibrators import Calibrator
from segcal.evaluation.case_evidence import CaseEvidence, Key, MethodEvidence
from segcal.evaluation.doubts import METRICS as METRICS_SHOWN
from segcal.evaluation.doubts import background_scores, different_backgrounds, leaks, majority_class, shared_cases
from segcal.evaluation.measure import Evaluation
from segcal.evaluation.methods import ExclusiveHead
from segcal.evaluation.pooled import PooledMetrics, pooled_curves, pooled_metrics
from segcal.evaluation.results import Results
from segcal.evaluation.saved import TABLES
from segcal.evidence import Evidence, Histogram
from segcal.evidence.cells import add_cells, ece_by_bins, empty_cells
from segcal.functional.catalogue import HIGHER_IS_BETTER, METRICS, SURFACES
from segcal.functional.checks import ignored_labels
from segcal.statistics import Drawing, bootstrap_doubts
from segcal.text import warn_caller
from segcal.types import Array, Case, InputError
from segcal.version import __version__

Row = tuple[Any, ...]

BINS = range(5, 101)
"""Numbers of bins for which ECE is computed."""


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
            for marginal, cells in ((False, own.cells), (True, own.class_cells)):
                if cells is None:
                    continue
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

    def moved(self, method: str) -> int:
        """Return how many predicted labels of *All* a method changed, in all channels together."""
        return sum(own.moved for own in self._of(method))

    def pixels(self, method: str) -> int:
        """Return the number of pixels of *All*, in all channels together."""
        place = self.evaluation.masked.index("all")
        return sum(int(own.pixels[place]) for own in self._of(method))

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
        if (background := self._unnamed_background()) is not None:
            about["unnamed_background"], scores = background
            about["warnings"].append(background_scores(background[0], scores[about["baseline"]], about["baseline"]))
        results = self._joined(about)
        if not evaluation.protocol.floor:
            return results
        return _with_floor(results, self._joined({"warnings": []}, redrawn=True))

    def _fits(self, content: Mapping[str, str]) -> dict[str, Any]:
        """Return the fit report of each calibrator, as JSON can hold it, and how it treats the cases measured."""
        found = {}
        for name, calibrator in self.evaluation.calibrators.items():
            report = getattr(calibrator, "fit_report_", None)
            if isinstance(calibrator, Calibrator) and report is not None:
                plain = {key: value for key, value in asdict(report).items() if key not in ("names", "fingerprints")}
                about = {"learned": calibrator.learned, "preserves_labels": calibrator.preserves_labels}
                changed = {"changed": self.moved(name) / max(self.pixels(name), 1)}
                found[name] = {**plain, **about, **changed, "shared_cases": shared_cases(calibrator, content)}
        return found

    def _unnamed_background(self) -> tuple[dict[str, Any], dict[str, dict[str, float]]] | None:
        """Return what is known of a class that covers most of all cases, and the scores of every method with it.

        None if a background is named, or no class was left out.
        """
        evaluation = self.evaluation
        pixels = sum(own.volumes[1] for own in self._of(next(iter(evaluation.calibrators))))
        if evaluation.majority is None or majority_class(np.asarray(pixels)) != evaluation.majority:
            return None
        tables, masked = _HeadTables(self, evaluation.heads[0], redrawn=False), evaluation.masked
        inside, outside = (
            {name: {key: tables.metrics(name, region).values[key] for key in METRICS_SHOWN} for name in tables.methods}
            for region in (masked.index("all"), len(masked))
        )
        index, names = evaluation.majority, evaluation.protocol.names
        fraction = float(pixels[index] / np.sum(pixels))
        return {"class": index, "name": names[index], "fraction": fraction, "scores": outside}, inside

    def _of(self, method: str) -> Iterator[MethodEvidence]:
        """Yield the evidence of a method with true labels, of every case and channel."""
        for case in self.cases.values():
            yield from (own for key, own in case.methods.items() if key.method == method and not key.redrawn)

    def _joined(self, about: Mapping[str, Any], *, redrawn: bool = False) -> Results:
        """Return the results of the one head, or the mean over several channels with the results of each."""
        heads = self.evaluation.heads
        names = [head.name for head in heads if head.channels]
        tables = [_HeadTables(self, head, redrawn) for head in heads]
        each = [own.results({**about, "channels": names}) for own in tables]
        if len(each) == 1:
            return each[0]
        channels = {
            head.name: replace(own, settings={**own.settings, "channels": [], **_fits_of_channel(about, head)})
            for head, own in zip(heads, each, strict=True)
        }
        whole = {"num_classes": len(names), "activation": self.evaluation.protocol.activation, "class_names": names}
        return _mean_over_channels(channels, tables, {**each[0].settings, **whole})


@dataclass(frozen=True)
class _HeadTables:
    """The tables of a softmax or of one sigmoid channel, with true labels or with those drawn for the floor."""

    builder: ResultsBuilder
    head: ExclusiveHead
    redrawn: bool

    def results(self, about: Mapping[str, Any]) -> Results:
        """Return the tables."""
        evaluation, protocol = self.builder.evaluation, self.head.protocol
        if self.redrawn:
            protocol = replace(protocol, floor=False, surfaces=False, limits=False)
        rows = {name: list[Row]() for name in TABLES if name != "limits_frame"}
        left_out = about.get("unnamed_background", {}).get("class", -1)  # no structure
        for name, case in self.builder.cases.items():
            rows["case_frame"].append((name, case.group))
            for method in self.methods:
                for table, row in self._rows_of(case, method, left_out):
                    rows[table].append((name, method, *row))
        for table, row in self._pooled_rows():
            rows[table].append(row)
        settings = {
            **asdict(protocol),
            "ignore_index": list(ignored_labels(protocol.ignore_index)),
            "class_names": list(protocol.names),
            "patch_sizes": sorted({row[2] for row in rows["size_frame"]}),
            "methods": list(self.methods),
            "regions": list(evaluation.masked),
            "segcal": __version__,
            "date": datetime.now(UTC).date().isoformat(),
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
            **about,
        }
        if protocol.surfaces:
            settings["surface_background"] = self._background_name(left_out)
            settings["surface_unit"] = " or ".join(dict.fromkeys(case.unit for case in self.builder.cases.values()))
        measured = {"size_frame": bool(rows["size_frame"]), "surface_frame": protocol.surfaces}
        frames = {name: TABLES[name].frame(own) for name, own in rows.items() if measured.get(name, True)}
        return Results(settings=settings, redrawn=None, channels={}, **frames)

    def _background_name(self, left_out: int) -> str:
        """Return the class that no surface table has; "" for none."""
        names, structures = self.head.protocol.names, self.head.structures
        without = [names[k] for k in range(len(names)) if k == left_out or k not in structures]
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
        protocol = self.head.protocol
        return Drawing(list(self.builder.cases), self._groups, protocol.interval, protocol.repetitions, protocol.seed)

    @property
    def _groups(self) -> list[str]:
        return [case.group for case in self.builder.cases.values()]

    def _vectors(self, method: str, region: int) -> Array:
        key = self.key(method)
        return np.stack([case.methods[key].vectors[region] for case in self.builder.cases.values()])

    def _rows_of(self, case: CaseEvidence, method: str, left_out: int) -> Iterator[tuple[str, Row]]:
        """Yield the rows of one case and method, each with its table; the class `left_out` is no structure."""
        evaluation, names, own = self.builder.evaluation, self.head.protocol.names, case.methods[self.key(method)]
        pixels, starts = own.pixels.tolist(), np.cumsum([len(own.vectors), *case.patches.values()]).tolist()
        patches = {side: slice(*ends) for side, ends in zip(case.patches, pairwise(starts), strict=True)}
        for metric, values in zip((*METRICS, *evaluation.metrics), own.values.tolist(), strict=True):
            measured = list(zip(values, pixels, strict=True))
            for region, found in zip(evaluation.masked, measured, strict=False):  # perhaps one more than is shown
                yield "frame", (region, metric, *found)
            if metric in evaluation.metrics or not case.origins:
                continue  # a function of a whole case is not called for each patch
            first, *_ = patches.values()
            for k, (place, found) in enumerate(zip(case.origins, measured[first], strict=True)):
                yield "patch_frame", (k, " ".join(map(str, place)), metric, *found)
            for row in self._summarised(metric, measured[first]):
                yield "frame", row
            for side in dict.fromkeys(self.head.protocol.patch_sizes):
                for row in self._summarised(metric, measured[patches[side]]):
                    yield "size_frame", (side, *row)
        for label, mass, count in zip(names, *own.volumes.tolist(), strict=True):
            yield "volume_frame", (label, mass, int(count))
        for label, *values in own.surfaces.tolist():
            for metric, value in zip(SURFACES if label != left_out else (), values, strict=False):
                yield "surface_frame", (names[int(label)], metric, value)

    def _summarised(self, metric: str, patches: Sequence[tuple[float, int]]) -> Iterator[tuple[str, str, float, int]]:
        """Yield Local-Avg and Local-Max of one image: the mean patch and the worst, among those that hold pixels."""
        held = [(value, size) for value, size in patches if size]
        found: dict[str, tuple[float, int]] = dict.fromkeys(("local-avg", "local-max"), (np.nan, 0))
        if held:
            worst = min if metric in HIGHER_IS_BETTER else max
            mean = float(np.mean([value for value, _ in held]))
            found = {"local-avg": (mean, sum(size for _, size in held)), "local-max": worst(held)}
        yield from ((region, metric, *found[region]) for region in self.builder.evaluation.local)

    def _pooled_rows(self) -> Iterator[tuple[str, Row]]:
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
        settings: Settings of the whole.
    """
    names, whole = list(channels), list(channels.values())
    first, drawing = tables[0], tables[0].drawing
    pooled, curves = list[Row](), list[Row]()
    for method in first.methods:
        for k, region in enumerate(first.builder.evaluation.masked):
            mean = PooledMetrics.mean([own.metrics(method, k) for own in tables])
            pooled += [(method, region, *row) for row in mean.rows(drawing)]
            by_channel = _side_by_side([own.top(method, k) for own in tables])
            curves += [(method, region, *row) for row in pooled_curves(by_channel, names, drawing=drawing)]
    volumes = [results.volumes().query("label == @name") for name, results in channels.items()]
    sizes = [results.size_frame for results in whole if results.size_frame is not None]
    surfaces = [results.surface_frame for results in whole if results.surface_frame is not None]
    return Results(
        mean_tables([results.frame for results in whole]),
        mean_tables([results.patch_frame for results in whole]),
        TABLES["pooled_frame"].frame(pooled),
        settings,
        case_frame=whole[0].case_frame,
        curve_frame=TABLES["curve_frame"].frame(curves),
        sensitivity_frame=mean_tables([own.sensitivity() for own in whole]),
        volume_frame=pd.concat(volumes, ignore_index=True),
        size_frame=mean_tables(sizes) if sizes else None,
        surface_frame=pd.concat(surfaces, ignore_index=True) if surfaces else None,
        channels=channels,
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


def _with_floor(results: Results, redrawn: Results) -> Results:
    """Return results with those of the labels drawn at random, also in each channel."""
    channels = {name: replace(own, redrawn=redrawn.channels[name]) for name, own in results.channels.items()}
    mean = replace(redrawn, settings={**redrawn.settings, "channels": []}, channels={})
    return replace(results, redrawn=mean, channels=channels)


def _fits_of_channel(about: Mapping[str, Any], head: ExclusiveHead) -> dict[str, Any]:
    """Return the fit reports of a sigmoid head with the details of one of its channels."""
    if "fits" not in about:
        return {}
    details = f"channel {head.channel}"
    return {"fits": {name: {**fit, "details": fit["details"].get(details, {})} for name, fit in about["fits"].items()}}
