"""The paper's table: methods by metric and region, mean(std), best in bold, marks of significance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from segcal.statistics import mean_std, significantly_better
from segcal.tables.numbers import MISSING, metric_of, number, with_interval
from segcal.tables.presentation import Presentation
from segcal.types import Array

CALIBRATION = ("ece", "mce", "sce", "ace")
QUALITY = ("accuracy", "miou", "nll", "brier")
REGIONS = ("all", "boundary", "local-avg", "local-max")
REGION_TITLES = {"all": "All", "boundary": "Boundary", "local-avg": "Local-Avg", "local-max": "Local-Max"}
REGION_MEANINGS = {
    "all": "labelled pixels outside the background, and Boundary",
    "boundary": "pixels near a change of the label",
    "local-avg": "the average patch",
    "local-max": "the worst patch of each image",
}
_METRIC_WIDTH = 60


@dataclass(frozen=True)
class Cell:
    """One number of the table and its marks; with an interval it is a figure over all pixels together."""

    metric: str
    mean: float
    std: float
    best: bool = False
    beaten: bool = False
    interval: tuple[float, float] | None = None

    def number(self) -> str:
        """Mean(std), or value [low, high], without marks."""
        if np.isnan(self.mean):
            return MISSING
        if self.interval is not None:
            return with_interval(self.metric, self.mean, *self.interval)
        return f"{number(self.metric, self.mean)}({number(self.metric, self.std)})"

    def __str__(self) -> str:
        text = self.number()
        return f"{f'**{text}**' if self.best else text}{'*' if self.beaten else ''}"

    def __rich__(self) -> Text:
        return Text(
            str(self).replace("**", ""), style=f"{'bold' if self.best else ''} {'green' if self.beaten else ''}"
        )


@dataclass(frozen=True)
class PaperTable:
    """A table that prints itself: as text with `print`, in colour with rich.

    Bold (`**`) is the best of a column; `*` (green) says that the reference is significantly better there. Below each
    method is its floor, where that is shown: what it would score if it were perfectly calibrated. `titles` spells out
    the methods whose names are abbreviations.
    """

    methods: tuple[str, ...]
    cells: Mapping[tuple[str, str, str], Cell]
    presentation: Presentation
    floors: Mapping[tuple[str, str, str], Cell] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)

    @property
    def reference(self) -> str | None:
        """The method that the others are tested against."""
        return self.presentation.reference

    def __str__(self) -> str:
        return "\n\n".join([*(self._text(*part) for part in self._parts(None)), self.legend()])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for metrics, regions in self._parts(options.max_width):
            yield self._rich(metrics, regions)
        yield Text(" ".join(self.notes("bold", "*")), style="dim")

    def legend(self) -> str:
        """What the marks mean."""
        return " ".join(self.notes("**bold**", "*"))

    def notes(self, bold: str, mark: str) -> list[str]:
        """What numbers, marks and names mean, in sentences; `bold` and `mark` are how the marks look."""
        notes = [f"{self.presentation.average_sentence()}; {bold}: best."]
        if self.reference is not None:
            notes.append(
                f"{mark}: the reference {self.reference} is significantly better ({self.presentation.test_sentence()})."
            )
        if self.floors:
            notes.append("floor: what the method would score if it were perfectly calibrated.")
        regions = [region for region in REGIONS if any(column[1] == region for column in self.columns(CALIBRATION))]
        if regions:
            notes.append(f"{'; '.join(f'{REGION_TITLES[r]}: {REGION_MEANINGS[r]}' for r in regions)}.")
        if named := [f"{method}: {self.titles[method]}" for method in self.methods if method in self.titles]:
            notes.append(f"{'; '.join(named)}.")
        return notes

    def _parts(self, width: int | None) -> list[tuple[Sequence[str], Sequence[str]]]:
        """What stands side by side: all of ECE to ACE in a wide terminal, one of them at a time in a narrow one."""
        together = 4 if width is None else max(1, min(4, width // _METRIC_WIDTH))
        parts = [(CALIBRATION[start : start + together], REGIONS) for start in range(0, 4, together)]
        return [*parts, (QUALITY, REGIONS[:1])]

    def columns(self, metrics: Sequence[str], regions: Sequence[str] = REGIONS) -> list[tuple[str, str]]:
        """The metrics and regions, of those named, that there are numbers of."""
        present = {(metric, region) for _, metric, region in self.cells}
        return [(metric, region) for metric in metrics for region in regions if (metric, region) in present]

    def rows(self, columns: Sequence[tuple[str, str]]) -> list[tuple[str, bool, list[Cell]]]:
        """Of each line: the method, whether it is its floor, and the numbers."""
        lines = []
        for method in self.methods:
            lines.append((method, False, [self.cells[(method, *column)] for column in columns]))
            if self.floors:
                lines.append((method, True, [self.floors[(method, *column)] for column in columns]))
        return lines

    def _text(self, metrics: Sequence[str], regions: Sequence[str]) -> str:
        columns = self.columns(metrics, regions)
        header = ["Method", *(title(*column) for column in columns)]
        body = [
            [
                "  floor" if floor else method,
                *(_bracketed(str(cell), column) for cell, column in zip(row, columns, strict=True)),
            ]
            for method, floor, row in self.rows(columns)
        ]
        widths = [max(len(line[k]) for line in [header, *body]) for k in range(len(header))]
        lines = [
            "  ".join(entry.ljust(width) for entry, width in zip(line, widths, strict=True)) for line in [header, *body]
        ]
        rule = "  ".join("-" * width for width in widths)
        return "\n".join(line.rstrip() for line in [lines[0], rule, *lines[1:]])

    def _rich(self, metrics: Sequence[str], regions: Sequence[str]) -> Table:
        columns = self.columns(metrics, regions)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        table.add_column("Method", no_wrap=True)
        for column in columns:
            table.add_column(title(*column).replace(" ", "\n"), justify="right", no_wrap=True)
        for method, floor, row in self.rows(columns):
            name = Text("  floor") if floor else Text(method, style="bold" if method == self.reference else "")
            table.add_row(name, *row, style="dim" if floor else "")
        return table


def paper_table(
    samples: Mapping[tuple[str, str, str], Array],
    methods: Sequence[str],
    presentation: Presentation,
    *,
    tested: Mapping[tuple[str, str, str], Array] | None = None,
    floors: Mapping[tuple[str, str, str], Array] | None = None,
    pooled: Mapping[tuple[str, str, str], tuple[float, float, float]] | None = None,
    titles: Mapping[str, str] | None = None,
) -> PaperTable:
    """Build the table from the values of each (method, metric, region), one for each image or patch.

    Args:
        samples: The values behind each mean(std).
        methods: In the order of the lines.
        presentation: Reference, test and average.
        tested: The values that are tested, where they are not the samples; in the order of the images, because pairs
            are formed by position.
        floors: Samples of the floor.
        pooled: Value and interval over all pixels together, shown instead of mean(std) where there is one.
        titles: Methods spelled out.
    """
    columns = sorted({(metric, region) for _, metric, region in samples})
    beaten = _beaten(samples if tested is None else tested, methods, columns, presentation)
    cells: dict[tuple[str, str, str], Cell] = {}
    for column in columns:
        found = {m: _cell((m, *column), samples, pooled or {}) for m in methods}
        means = [cell.mean for cell in found.values() if not np.isnan(cell.mean)]
        top = (max(means) if metric_of(column[0]).higher_is_better else min(means)) if means else np.nan
        differ = bool(means) and max(means) != min(means)
        for method, cell in found.items():
            best = differ and cell.mean == top
            cells[(method, *column)] = replace(cell, best=best, beaten=(method, column) in beaten)
    plain = {key: _cell(key, floors, {}) for key in floors} if floors else {}
    return PaperTable(tuple(methods), cells, presentation, plain, titles or {})


def _cell(
    key: tuple[str, str, str],
    samples: Mapping[tuple[str, str, str], Array],
    pooled: Mapping[tuple[str, str, str], tuple[float, float, float]],
) -> Cell:
    if key in pooled:
        value, low, high = pooled[key]
        return Cell(key[1], value, np.nan, interval=(low, high))
    return Cell(key[1], *mean_std(samples[key]))


def _beaten(
    units: Mapping[tuple[str, str, str], Array],
    methods: Sequence[str],
    columns: Sequence[tuple[str, str]],
    presentation: Presentation,
) -> set[tuple[str, tuple[str, str]]]:
    """The methods and columns in which the reference is significantly better, corrected for all comparisons."""
    reference = presentation.reference
    if reference is None:
        return set()
    compared = [(method, column) for method in methods for column in columns if method != reference]
    marks = significantly_better(
        [(units[(reference, *column)], units[(method, *column)]) for method, column in compared],
        lower_is_better=[not metric_of(metric).higher_is_better for _, (metric, _) in compared],
        test=presentation.test,
    )
    return {key for key, mark in zip(compared, marks, strict=True) if mark}


def title(metric: str, region: str) -> str:
    """The heading of a column."""
    shown = metric_of(metric)
    heading = f"{shown.title}{'(%)' if shown.percent else ''}{'↑' if shown.higher_is_better else '↓'}"
    return heading if metric in QUALITY else f"{heading} {REGION_TITLES[region]}"


def _bracketed(text: str, column: tuple[str, str]) -> str:
    return f"[{text}]" if column[1] == "local-max" else text
