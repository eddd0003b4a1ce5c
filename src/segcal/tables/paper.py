"""The paper's table: methods by metric and region, mean(std), best in bold, significance marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from segcal.functional.catalogue import CALIBRATION, CATALOGUE, HIGHER_IS_BETTER, QUALITY
from segcal.regions import in_table_order, region_notes, region_title
from segcal.statistics import mean_std, significantly_better
from segcal.tables.numbers import MISSING, number, with_interval
from segcal.tables.presentation import Presentation
from segcal.types import Array

_COLUMN_WIDTH = 15


@dataclass(frozen=True)
class Cell:
    """One entry of the table.

    Attributes:
        metric: Name of the metric, which decides how the numbers are shown.
        mean: Mean over images or patches, or the figure over all pixels together.
        std: Standard deviation over images or patches.
        best: Whether it is the best of its column.
        beaten: Whether the reference is significantly better.
        interval: 95 % interval of a figure over all pixels together.
    """

    metric: str
    mean: float
    std: float
    best: bool = False
    beaten: bool = False
    interval: tuple[float, float] | None = None

    def number(self) -> str:
        """Return mean(std), or value [low, high], without marks."""
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

    Bold (`**`) is the best of a column; `*` (green) marks where the reference is significantly better. The floor of a
    method, what it would score if it were perfectly calibrated, is shown below it if it was measured. `titles` spells
    out the methods whose names are abbreviations, and `warnings` are printed below everything else. `whole` says that
    there is no background, so that *All* holds every labelled pixel.
    """

    methods: tuple[str, ...]
    cells: Mapping[tuple[str, str, str], Cell]
    presentation: Presentation
    floors: Mapping[tuple[str, str, str], Cell] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    whole: bool = False

    @property
    def reference(self) -> str | None:
        """The method that the others are tested against."""
        return self.presentation.reference

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
        """Return what numbers, marks and names mean, in sentences; `bold` and `mark` are how the marks look."""
        notes = [f"{self.presentation.average_sentence()}; {bold}: best."]
        if self.reference is not None:
            test = self.presentation.test_sentence()
            notes.append(f"{mark}: the reference {self.reference} is significantly better ({test}).")
        if self.floors:
            notes.append("floor: what the method would score if it were perfectly calibrated.")
        shown = in_table_order([*dict.fromkeys(region for _, region in self.columns(CALIBRATION))])
        if explained := region_notes(shown, whole=self.whole):
            notes.append(f"{'; '.join(explained)}.")
        if named := [f"{method}: {self.titles[method]}" for method in self.methods if method in self.titles]:
            notes.append(f"{'; '.join(named)}.")
        return [*notes, *(f"Warning: {text}." for text in self.warnings)]

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
    presentation: Presentation,
    *,
    tested: Mapping[tuple[str, str, str], Array] | None = None,
    floors: Mapping[tuple[str, str, str], Array] | None = None,
    pooled: Mapping[tuple[str, str, str], tuple[float, float, float]] | None = None,
    titles: Mapping[str, str] | None = None,
    warnings: Sequence[str] = (),
    whole: bool = False,
) -> PaperTable:
    """Build the table from the values of each (method, metric, region), one per image or patch.

    Args:
        samples: Values that mean(std) is taken over.
        methods: Methods in the order of the lines.
        presentation: Reference, test and average.
        tested: Values that are tested, if not the samples; in the order of the images, because pairs are by position.
        floors: Samples of the floor.
        pooled: Value and interval over all pixels together, shown instead of mean(std) where there is one.
        titles: Methods spelled out.
        warnings: Sentences to print below the table.
        whole: Whether *All* holds every labelled pixel, because there is no background.
    """
    columns = [*dict.fromkeys((metric, region) for _, metric, region in samples)]
    beaten = _beaten(samples if tested is None else tested, methods, columns, presentation)
    cells: dict[tuple[str, str, str], Cell] = {}
    for column in columns:
        found = {method: _cell((method, *column), samples, pooled or {}) for method in methods}
        best_number = _best_number(column[0], [cell.mean for cell in found.values() if not np.isnan(cell.mean)])
        for method, cell in found.items():
            best = number(column[0], cell.mean) == best_number
            cells[(method, *column)] = replace(cell, best=best, beaten=(method, column) in beaten)
    plain = {key: _cell(key, floors, {}) for key in floors} if floors else {}
    return PaperTable(tuple(methods), cells, presentation, plain, titles or {}, tuple(warnings), whole)


def _best_number(metric: str, means: Sequence[float]) -> str | None:
    """Return the best of the means as it is printed, so that methods with the same digits are best together.

    None if all print the same, so that none is marked.
    """
    if len({number(metric, mean) for mean in means}) < 2:
        return None
    return number(metric, max(means) if metric in HIGHER_IS_BETTER else min(means))


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
    """Return the methods and columns in which the reference is significantly better, corrected for all comparisons."""
    reference = presentation.reference
    if reference is None:
        return set()
    compared = [(method, column) for method in methods for column in columns if method != reference]
    marks = significantly_better(
        [(units[(reference, *column)], units[(method, *column)]) for method, column in compared],
        lower_is_better=[metric not in HIGHER_IS_BETTER for _, (metric, _) in compared],
        test=presentation.test,
    )
    return {key for key, mark in zip(compared, marks, strict=True) if mark}


def title(metric: str, region: str) -> str:
    """Return the heading of a column; metrics of quality are shown in *All* only, which goes without saying."""
    heading = CATALOGUE[metric].heading
    return heading if metric in QUALITY else f"{heading} {region_title(region)}"


def _bracketed(text: str, column: tuple[str, str]) -> str:
    return f"[{text}]" if column[1] == "local-max" else text
