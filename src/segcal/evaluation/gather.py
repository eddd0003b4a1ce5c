"""The findings of all cases gathered into the tables of `Results`."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import torch

from segcal.evaluation.findings import Findings, Key, Seen, top_of
from segcal.evaluation.pooled import Draw, Figures, ece_of_bins, pooled_curves, pooled_figures
from segcal.evaluation.protocol import Protocol
from segcal.evaluation.quality import COLUMNS, quality_rows
from segcal.evaluation.results import Results
from segcal.functional.binning import Histogram
from segcal.functional.catalogue import HIGHER_IS_BETTER
from segcal.functional.checks import ignored_labels
from segcal.statistics import bootstrap_intervals, clusters_of
from segcal.types import Array
from segcal.version import __version__

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Gathered:
    """The findings of cases in their order, with true labels or with those drawn for the floor.

    Attributes:
        findings: Of all cases.
        names: The cases in the order of the tables.
        protocol: How it was measured.
        methods: Names of the methods.
        masked: Names of the regions that are masks.
        local: Names of those that summarise the patches of an image.
        redrawn: Whether these are the findings with labels drawn for the floor.
        channel: Index of the sigmoid channel.
    """

    findings: Findings
    names: Sequence[str]
    protocol: Protocol
    methods: tuple[str, ...]
    masked: tuple[str, ...]
    local: tuple[str, ...]
    redrawn: bool = False
    channel: int = 0

    def results(self, warnings: list[str]) -> Results:
        """Return the tables."""
        tables = zip(*self._tables(), strict=True)
        rows, patch_rows, size_rows, volume_rows = (list(chain.from_iterable(parts)) for parts in tables)
        settings = asdict(self.protocol)
        settings["ignore_index"] = list(ignored_labels(self.protocol.ignore_index))
        settings["class_names"] = list(self.protocol.names)
        if self.protocol.surfaces:
            units = (self.findings.cases[name].unit for name in self.names)
            settings["surface_unit"] = " or ".join(dict.fromkeys(units))
        settings["patch_sizes"] = sorted({row[2] for row in size_rows})
        size_columns = ["case", "method", "size", "region", "metric", "value", "pixels"]
        pooled, curves, sensitivity = self._pooled()
        return Results(
            pd.DataFrame(rows, columns=["case", "method", "region", "metric", "value", "pixels"]),
            pd.DataFrame(patch_rows, columns=["case", "method", "patch", "origin", "metric", "value", "pixels"]),
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
            case_frame=pd.DataFrame({"case": list(self.names), "group": self.groups}),
            curve_frame=curves,
            sensitivity_frame=sensitivity,
            volume_frame=pd.DataFrame(volume_rows, columns=["case", "method", "label", "predicted", "true"]),
            size_frame=pd.DataFrame(size_rows, columns=size_columns) if size_rows else None,
            surface_frame=self._surfaces(),
        )

    def _surfaces(self) -> pd.DataFrame | None:
        """Return the figures of each structure, where they were measured."""
        if not self.protocol.surfaces:
            return None
        rows = [
            row
            for case in self.names
            for method in self.methods
            for row in quality_rows(
                case, method, self.findings.readings[case, self._key(method)].surfaces, self.protocol.names
            )
        ]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    @property
    def groups(self) -> list[str]:
        """The group of each case."""
        return [self.findings.cases[name].group for name in self.names]

    def _tables(self) -> Iterator[tuple[list[Row], list[Row], list[Row], list[Row]]]:
        """Yield the rows of regions, of patches, of further patch sizes and of volumes, for each case and method."""
        for case in self.names:
            seen = self.findings.cases[case]
            for method in self.methods:
                reading = self.findings.readings[case, self._key(method)]
                pixels = [int(size) for size in reading.pixels]
                own, patches, sizes = list[Row](), list[Row](), list[Row]()
                for metric, values in zip(self.findings.metrics, reading.values.tolist(), strict=True):
                    self._add_rows((case, method), seen, metric, values, pixels, own, patches, sizes)
                predicted, true = reading.volumes.tolist()
                labels = zip(self.protocol.names, predicted, true, strict=True)
                yield own, patches, sizes, [(case, method, name, mass, int(count)) for name, mass, count in labels]

    def _add_rows(
        self,
        about: tuple[str, str],
        seen: Seen,
        metric: str,
        values: list[float],
        pixels: list[int],
        rows: list[Row],
        patch_rows: list[Row],
        size_rows: list[Row],
    ) -> None:
        """Add the rows of one metric."""
        first, end = len(self.masked), len(self.masked) + len(seen.origins)
        rows += [(*about, region, metric, values[k], pixels[k]) for k, region in enumerate(self.masked)]
        for k, place in enumerate(seen.origins):
            origin = " ".join(map(str, place))
            patch_rows.append((*about, k, origin, metric, values[first + k], pixels[first + k]))
        if not seen.origins:
            return
        for region, value, size in self._summarised(metric, values[first:end], pixels[first:end]):
            rows.append((*about, region, metric, value, size))
        for side, count in seen.studied.items():
            start, end = end, end + count
            for region, value, size in self._summarised(metric, values[start:end], pixels[start:end]):
                size_rows.append((*about, side, region, metric, value, size))

    def _summarised(
        self, metric: str, values: Sequence[float], pixels: Sequence[int]
    ) -> Iterator[tuple[str, float, int]]:
        """Yield Local-Avg and Local-Max of one image: the mean patch and the worst, among those that hold pixels."""
        held = [(value, size) for value, size in zip(values, pixels, strict=True) if size]
        found: dict[str, tuple[float, int]] = dict.fromkeys(("local-avg", "local-max"), (np.nan, 0))
        if held:
            worst = min if metric in HIGHER_IS_BETTER else max
            mean = float(np.mean([value for value, _ in held]))
            found = {"local-avg": (mean, sum(size for _, size in held)), "local-max": worst(held)}
        yield from ((region, *found[region]) for region in self.local)

    def figures(self, method: str, region: int) -> Figures:
        """Return the metrics of a method in a region over all cases."""
        key, form = self._key(method), self.protocol.form
        top = self.findings.histogram(key, region)
        cells = self.findings.histogram(key, region, marginal=True) if form == "marginal" else top
        return pooled_figures(self._evidence(method, region), cells, top, bins=self.protocol.bins, form=form)

    def top(self, method: str, region: int) -> Histogram:
        """Return the top confidences of a region in each case, by predicted class: `[cases, L, R]`."""
        return top_of(self._evidence(method, region), self.protocol.num_classes)

    def drawing(self) -> Draw:
        """Return the bootstrap over cases or groups."""
        return partial(
            bootstrap_intervals,
            kind=self.protocol.interval,
            repetitions=self.protocol.repetitions,
            seed=self.protocol.seed,
            clusters=clusters_of(self.groups),
        )

    def _key(self, method: str) -> Key:
        return Key(method, self.redrawn, self.channel)

    def _evidence(self, method: str, region: int) -> Array:
        return self.findings.evidence(self.names, self._key(method), region)

    def _pooled(self) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        """Return figures over all pixels of all cases, reliability diagrams, and ECE for other numbers of bins."""
        names, draw = self.protocol.names, self.drawing()
        pooled, curves, sensitivity = list[Row](), list[Row](), list[Row]()
        for method in self.methods:
            for k, region in enumerate(self.masked):
                about = (method, region)
                pooled += pooled_frame_rows(method, region, self.figures(method, k), draw)
                curves += [(*about, *row) for row in pooled_curves(self.top(method, k), names, draw=draw)]
                cells = self.findings.histogram(self._key(method), k)
                sensitivity += [(*about, *row) for row in ece_of_bins(cells)]
        return (
            pd.DataFrame(pooled, columns=POOLED_COLUMNS),
            pd.DataFrame(curves, columns=CURVE_COLUMNS),
            pd.DataFrame(sensitivity, columns=["method", "region", "bins", "ece"]),
        )


POOLED_COLUMNS = ["method", "region", "metric", "value", "low", "high", "images", "pixels"]
_EDGES = ("low_edge", "high_edge", "count", "hit", "confidence", "low", "high")
CURVE_COLUMNS = ["method", "region", "label", "bin", *_EDGES]


def pooled_frame_rows(method: str, region: str, figures: Figures, draw: Draw) -> list[Row]:
    """Return the rows of the pooled table for one method and region."""
    return [(method, region, *row, figures.images, pixels) for *row, pixels in figures.rows(draw)]
