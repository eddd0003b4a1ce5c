"""The paper's table: methods by metric and region, mean(std), best in bold, marks of significance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from segcal.functional.binning import HIGHER_IS_BETTER
from segcal.statistics import TESTS, Test, mean_std, significantly_better
from segcal.types import Array

CALIBRATION = ("ece", "mce", "sce", "ace")
QUALITY = ("accuracy", "miou", "nll", "brier")
REGIONS = ("all", "boundary", "local-avg", "local-max")
_TITLES = {"accuracy": "Accuracy(%)↑", "miou": "mIoU(%)↑", "nll": "NLL↓", "brier": "Brier↓"}
REGION_TITLES = {"all": "All", "boundary": "Boundary", "local-avg": "Local-Avg", "local-max": "Local-Max"}
_METRIC_WIDTH = 60
_IN_UNITS = frozenset({"nll", "brier"})


@dataclass(frozen=True)
class Cell:
    """One number of the table: over how many images or patches, and what the marks say."""

    mean: float
    std: float
    best: bool
    beaten: bool
    in_percent: bool

    def number(self) -> str:
        """Mean(std) without marks."""
        if np.isnan(self.mean):
            return "-"
        scale, digits = (100, 2) if self.in_percent else (1, 4)
        return f"{scale * self.mean:.{digits}f}({scale * self.std:.{digits}f})"

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
    method stands its floor, where that is shown: what it would score if it were perfectly calibrated.
    """

    methods: tuple[str, ...]
    cells: Mapping[tuple[str, str, str], Cell]
    reference: str | None
    test: Test = "mann-whitney"
    floors: Mapping[tuple[str, str, str], Cell] = field(default_factory=dict)

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
        """What the marks mean, in sentences; `bold` and `mark` are how they look."""
        notes = [f"mean(std) over images, Local-Avg over patches; {bold}: best."]
        if self.reference is not None:
            test = f"{TESTS[self.test]}, Benjamini-Hochberg at 0.05"
            notes.append(f"{mark}: {self.reference} is significantly better ({test}).")
        if self.floors:
            notes.append("floor: what the method would score if it were perfectly calibrated.")
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
    reference: str | None,
    *,
    test: Test = "mann-whitney",
    tested: Mapping[tuple[str, str, str], Array] | None = None,
    floors: Mapping[tuple[str, str, str], Array] | None = None,
) -> PaperTable:
    """Build the table from the values of each (method, metric, region), one for each image or patch.

    Args:
        samples: What mean(std) is taken over.
        methods: In the order of the lines.
        reference: The method that the others are tested against.
        test: Which test.
        tested: What is tested, where that is not the samples; in the order of the images, as pairs are by place.
        floors: Samples of the floor.
    """
    columns = sorted({(metric, region) for _, metric, region in samples})
    compared = [(m, c) for m in methods for c in columns if reference is not None and m != reference]
    units = samples if tested is None else tested
    marks = significantly_better(
        [(units[(str(reference), *c)], units[(m, *c)]) for m, c in compared],
        lower_is_better=[c[0] not in HIGHER_IS_BETTER for _, c in compared],
        test=test,
    )
    beaten = {key for key, mark in zip(compared, marks, strict=True) if mark}
    cells: dict[tuple[str, str, str], Cell] = {}
    for column in columns:
        found = {method: mean_std(samples[(method, *column)]) for method in methods}
        means = [mean for mean, _ in found.values() if not np.isnan(mean)]
        top = (max(means) if column[0] in HIGHER_IS_BETTER else min(means)) if means else np.nan
        all_equal = not means or max(means) == min(means)
        for method, (mean, std) in found.items():
            best = mean == top and not all_equal
            mark = (method, column) in beaten
            cells[(method, *column)] = Cell(mean, std, best, mark, column[0] not in _IN_UNITS)
    plain = {
        key: Cell(*mean_std(sample), best=False, beaten=False, in_percent=key[1] not in _IN_UNITS)
        for key, sample in (floors or {}).items()
    }
    return PaperTable(tuple(methods), cells, reference, test, plain)


def title(metric: str, region: str) -> str:
    """The heading of a column."""
    if metric in _TITLES:
        return _TITLES[metric]
    return f"{metric.upper()}(%)↓ {REGION_TITLES[region]}"


def _bracketed(text: str, column: tuple[str, str]) -> str:
    return f"[{text}]" if column[1] == "local-max" else text
