"""The findings of all cases gathered into the tables of `Results`."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from segcal.evaluation.measure import Measured
from segcal.evaluation.places import Places
from segcal.evaluation.pooled import (
    Draw,
    Figures,
    ece_of_bins,
    empty_cells,
    first_regions,
    pooled_curves,
    pooled_figures,
)
from segcal.evaluation.protocol import Protocol
from segcal.evaluation.results import Results
from segcal.functional.binning import Evidence, Histogram
from segcal.functional.catalogue import HIGHER_IS_BETTER, readings
from segcal.functional.checks import ignored_labels
from segcal.statistics import bootstrap_intervals, clusters_of
from segcal.types import Case, InputError
from segcal.version import __version__


@dataclass
class Gathered:
    """Everything found so far: a few rows for each case, and fine histograms for each method and region.

    Attributes:
        protocol: How it is measured.
        methods: Names of the methods.
        masked: Names of the regions that are masks.
        local: Names of those that summarise the patches of an image.
    """

    protocol: Protocol
    methods: tuple[str, ...]
    masked: tuple[str, ...]
    local: tuple[str, ...]
    cases: dict[str, str] = field(default_factory=dict)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    patch_rows: list[tuple[Any, ...]] = field(default_factory=list)
    size_rows: list[tuple[Any, ...]] = field(default_factory=list)
    volume_rows: list[tuple[Any, ...]] = field(default_factory=list)
    evidence: dict[str, list[Evidence]] = field(default_factory=dict)
    top_cells: dict[tuple[str, int], Histogram] = field(default_factory=dict)
    marginal_cells: dict[tuple[str, int], Histogram] = field(default_factory=dict)

    def begin(self, case: Case) -> None:
        """Note a case before its findings are added."""
        if case.name in self.cases:
            raise InputError(f"case names must be unique, got '{case.name}' twice; rename one")
        self.cases[case.name] = case.group or ""

    def add(self, case: str, method: str, places: Places, measured: Measured) -> None:
        """Add what one method gave on one case."""
        self._add_rows(case, method, places, measured.evidence)
        for name, mass, true in zip(self.protocol.names, measured.mass.tolist(), measured.support, strict=True):
            self.volume_rows.append((case, method, name, mass, true))
        self.evidence.setdefault(method, []).append(first_regions(measured.evidence, len(self.masked)))
        marginal = self.protocol.form == "marginal"
        for k, region in enumerate(places.regions):
            key = (method, k)
            if key not in self.top_cells:
                self.top_cells[key] = empty_cells(self.protocol.num_classes)
                self.marginal_cells[key] = empty_cells(self.protocol.num_classes) if marginal else self.top_cells[key]
            measured.add_cells(region, self.top_cells[key], self.marginal_cells[key] if marginal else None)

    def _add_rows(self, case: str, method: str, places: Places, evidence: Evidence) -> None:
        found = {name: values.tolist() for name, values in readings(evidence, self.protocol.form).items()}
        pixels, first_patch = found.pop("pixels"), len(self.masked)
        for metric, values in found.items():
            for k, region in enumerate(self.masked):
                self.rows.append((case, method, region, metric, values[k], pixels[k]))
            for k, box in enumerate(places.boxes, start=first_patch):
                origin = " ".join(str(interval.start) for interval in box)
                self.patch_rows.append((case, method, k - first_patch, origin, metric, values[k], pixels[k]))
            if not places.boxes:
                continue
            end = first_patch + len(places.boxes)
            for region, value, size in self._summarised(metric, values[first_patch:end], pixels[first_patch:end]):
                self.rows.append((case, method, region, metric, value, size))
            for side, patches in places.studied.items():
                start, end = end, end + len(patches)
                for region, value, size in self._summarised(metric, values[start:end], pixels[start:end]):
                    self.size_rows.append((case, method, side, region, metric, value, size))

    def _summarised(
        self, metric: str, values: Sequence[float], pixels: Sequence[int]
    ) -> Iterator[tuple[str, float, int]]:
        """Local-Avg and Local-Max of one image: the mean patch and the worst, among those that hold pixels."""
        held = [(value, size) for value, size in zip(values, pixels, strict=True) if size]
        found: dict[str, tuple[float, int]] = dict.fromkeys(("local-avg", "local-max"), (np.nan, 0))
        if held:
            worst = min if metric in HIGHER_IS_BETTER else max
            mean = float(np.mean([value for value, _ in held]))
            found = {"local-avg": (mean, sum(size for _, size in held)), "local-max": worst(held)}
        yield from ((region, *found[region]) for region in self.local)

    def results(self, warnings: list[str]) -> Results:
        """Return the tables."""
        settings = asdict(self.protocol)
        settings["ignore_index"] = list(ignored_labels(self.protocol.ignore_index))
        settings["class_names"] = list(self.protocol.names)
        settings["patch_sizes"] = sorted({row[2] for row in self.size_rows})
        size_columns = ["case", "method", "size", "region", "metric", "value", "pixels"]
        pooled, curves, sensitivity = self._pooled()
        return Results(
            pd.DataFrame(self.rows, columns=["case", "method", "region", "metric", "value", "pixels"]),
            pd.DataFrame(self.patch_rows, columns=["case", "method", "patch", "origin", "metric", "value", "pixels"]),
            pooled,
            {
                **settings,
                "methods": list(self.methods),
                "regions": list(self.masked),
                "warnings": warnings,
                "segcal": __version__,
                "date": datetime.now(UTC).date().isoformat(),
                "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
            },
            case_frame=pd.DataFrame(list(self.cases.items()), columns=["case", "group"]),
            curve_frame=curves,
            sensitivity_frame=sensitivity,
            volume_frame=pd.DataFrame(self.volume_rows, columns=["case", "method", "label", "predicted", "true"]),
            size_frame=pd.DataFrame(self.size_rows, columns=size_columns) if self.size_rows else None,
        )

    def figures(self, method: str, region: int) -> Figures:
        """Return the metrics of a method in a region over all cases."""
        top, cells = self.top_cells[(method, region)], self.marginal_cells[(method, region)]
        bins, form = self.protocol.bins, self.protocol.form
        return pooled_figures(self.evidence[method], region, cells, top, bins=bins, form=form)

    def drawing(self) -> Draw:
        """Return the bootstrap over cases or groups."""
        return partial(
            bootstrap_intervals,
            kind=self.protocol.interval,
            repetitions=self.protocol.repetitions,
            seed=self.protocol.seed,
            clusters=clusters_of(list(self.cases.values())),
        )

    def _pooled(self) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        """Figures over all pixels of all cases, reliability diagrams, and ECE for other numbers of bins."""
        names, draw = self.protocol.names, self.drawing()
        pooled: list[tuple[Any, ...]] = []
        curves: list[tuple[Any, ...]] = []
        sensitivity: list[tuple[Any, ...]] = []
        for method in self.methods:
            for k, region in enumerate(self.masked):
                pooled += pooled_frame_rows(method, region, self.figures(method, k), draw)
                rows = pooled_curves(self.evidence[method], k, names, draw=draw)
                curves += [(method, region, *row) for row in rows]
                sensitivity += [(method, region, *row) for row in ece_of_bins(self.top_cells[(method, k)])]
        return (
            pd.DataFrame(pooled, columns=POOLED_COLUMNS),
            pd.DataFrame(curves, columns=CURVE_COLUMNS),
            pd.DataFrame(sensitivity, columns=["method", "region", "bins", "ece"]),
        )


POOLED_COLUMNS = ["method", "region", "metric", "value", "low", "high", "images", "pixels"]
_EDGES = ("low_edge", "high_edge", "count", "hit", "confidence", "low", "high")
CURVE_COLUMNS = ["method", "region", "label", "bin", *_EDGES]


def pooled_frame_rows(method: str, region: str, figures: Figures, draw: Draw) -> list[tuple[Any, ...]]:
    """Return the rows of the pooled table for one method and region."""
    return [(method, region, *row, figures.images, pixels) for *row, pixels in figures.rows(draw)]
