"""The paper's table: methods by metric and region, mean(std), best in bold, significance marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from segcal.functional.catalogue import CALIBRATION, CATALOGUE, HIGHER_IS_BETTER, QUALITY
from segcal.regions import REGIONS, in_table_order, region_title
from segcal.statistics import TESTS, Test, mean_std, significantly_better
from segcal.types import Array

REGION_TITLES = {name: region.title for name, region in REGIONS.items()}
_COLUMN_WIDTH = 15


@dataclass(frozen=True)
class Cell:
    """One entry of the table.

    Attributes:
        mean: Mean over images or patches.
        std: Standard deviation over them.
        best: Whether it is the best of its column.
        beaten: Whether the reference is significantly better.
        metric: Name of the metric, which decides how the numbers are shown.
    """

    mean: float
    std: float
    best: bool
    beaten: bool
    metric: str

    def number(self) -> str:
        """Return mean(std) without marks."""
        if np.isnan(self.mean):
            return "-"
        shown = CATALOGUE[self.metric].number
        return f"{shown(self.mean)}({shown(self.std)})"

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

    Bold (`**`) is the best of a column; `*` (green) marks where the reference is significantly better. The floor of a
    method, what it would score if it were perfectly calibrated, is shown below it if it was measured.
    """

    methods: tuple[str, ...]
    cells: Mapping[tuple[str, str, str], Cell]
    reference: str | None
    test: Test = "mann-whitney"
    floors: Mapping[tuple[str, str, str], Cell] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n\n".join([*(self._text(part) for part in self._parts(None)), self.legend()])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for columns in self._parts(options.max_width):
            yield self._rich(columns)
        yield Text(" ".join(self.notes("bold", "*")), style="dim")

    def legend(self) -> str:
        """Return what the marks mean."""
        return " ".join(self.notes("**bold**", "*"))

    def notes(self, bold: str, mark: str) -> list[str]:
        """Return what the marks mean, in sentences; `bold` and `mark` are how the marks look."""
        notes = [f"mean(std) over images, Local-Avg over patches; {bold}: best."]
        if self.reference is not None:
            test = f"{TESTS[self.test].title}, Benjamini-Hochberg at 0.05"
            notes.append(f"{mark}: {self.reference} is significantly better ({test}).")
        if self.floors:
            notes.append("floor: what the method would score if it were perfectly calibrated.")
        return notes

    def _parts(self, width: int | None) -> list[list[tuple[str, str]]]:
        """Columns shown side by side: all calibration metrics if the terminal is wide enough, else fewer at a time."""
        calibration = [own for metric in CALIBRATION if (own := self.columns([metric]))]
        widest = max((len(own) for own in calibration), default=1) * _COLUMN_WIDTH
        together = len(calibration) if width is None else max(1, width // widest)
        parts = [
            [column for own in calibration[start : start + together] for column in own]
            for start in range(0, len(calibration), together or 1)
        ]
        return [part for part in (*parts, self.columns(QUALITY)) if part]

    def columns(self, metrics: Sequence[str]) -> list[tuple[str, str]]:
        """Return the columns (metric, region) of these metrics, in the order of the table."""
        present = dict.fromkeys((metric, region) for _, metric, region in self.cells)
        regions = in_table_order([*dict.fromkeys(region for _, region in present)])
        return [(metric, region) for metric in metrics for region in regions if (metric, region) in present]

    def rows(self, columns: Sequence[tuple[str, str]]) -> list[tuple[str, bool, list[Cell]]]:
        """Return the method of each line, whether the line is its floor, and the entries."""
        lines = []
        for method in self.methods:
            lines.append((method, False, [self.cells[(method, *column)] for column in columns]))
            if self.floors:
                lines.append((method, True, [self.floors[(method, *column)] for column in columns]))
        return lines

    def _text(self, columns: Sequence[tuple[str, str]]) -> str:
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

    def _rich(self, columns: Sequence[tuple[str, str]]) -> Table:
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
    """Build the table from the values of each (method, metric, region), one per image or patch.

    Args:
        samples: Values that mean(std) is taken over.
        methods: Methods in the order of the lines.
        reference: Method that the others are tested against.
        test: Name of the test.
        tested: Values that are tested, if not the samples; in the order of the images, because pairs are by position.
        floors: Samples of the floor.
    """
    columns = [*dict.fromkeys((metric, region) for _, metric, region in samples)]
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
            cells[(method, *column)] = Cell(mean, std, best, mark, column[0])
    plain = {
        key: Cell(*mean_std(sample), best=False, beaten=False, metric=key[1]) for key, sample in (floors or {}).items()
    }
    return PaperTable(tuple(methods), cells, reference, test, plain)


def title(metric: str, region: str) -> str:
    """Return the heading of a column; metrics of quality are shown in *All* only, which goes without saying."""
    heading = CATALOGUE[metric].heading
    return heading if metric in QUALITY else f"{heading} {region_title(region)}"


def _bracketed(text: str, column: tuple[str, str]) -> str:
    return f"[{text}]" if column[1] == "local-max" else text
