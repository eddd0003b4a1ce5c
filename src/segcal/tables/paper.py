"""The paper's table: methods by metric and region, mean(std), best in bold, significance marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from rich.text import Text

from segcal.functional.catalogue import CALIBRATION, CATALOGUE, HIGHER_IS_BETTER, QUALITY, metric_named
from segcal.regions import in_table_order, region_notes, region_title
from segcal.statistics import TESTS, Test, mean_std, significantly_better
from segcal.tables.numbers import MISSING, number, with_interval
from segcal.tables.text_table import TextTable
from segcal.types import Array, InputError

Average = Literal["images", "pixels"]


@dataclass(frozen=True)
class Presentation:
    """Presentation of results.

    Attributes:
        reference: The method that the others are tested against; None for no test.
        test: "wilcoxon", which compares the methods image by image, or group by group where there are groups; or
            "paper" for the Mann-Whitney U test over images (Local-Avg: patches), which ignores the pairs.
        average: "images" for the mean over images, as in the paper; "pixels" for all pixels together. Local patches
            are always averaged over patches (Local-Avg) and images (Local-Max).
    """

    reference: str | None = None
    test: Test = "wilcoxon"
    average: Average = "images"

    def __post_init__(self) -> None:
        for name, value, known in (("test", self.test, tuple(TESTS)), ("average", self.average, get_args(Average))):
            if value not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, got '{value}'")

    @classmethod
    def saved_in(cls, settings: Mapping[str, Any]) -> Presentation:
        """The choice saved with results; the default for results without one."""
        return cls(**settings.get("presentation", {}))

    def with_changes(
        self, reference: str | None = None, test: str | None = None, average: str | None = None
    ) -> Presentation:
        """The same choice except for what is given."""
        changes = {"reference": reference, "test": test, "average": average}
        return replace(self, **{name: value for name, value in changes.items() if value is not None})  # type: ignore[arg-type]

    def checked(self, methods: Sequence[str]) -> Presentation:
        """Return the same choice with the reference spelled as among the methods; raise unless it is one of them."""
        return self if self.reference is None else replace(self, reference=named_method(self.reference, methods))

    def test_sentence(self) -> str:
        """Name the test and the correction for many comparisons."""
        over = "images or groups" if TESTS[self.test].paired else "images, Local-Avg: patches"
        return f"{TESTS[self.test].title} over {over}, Benjamini-Hochberg at 0.05"

    def average_sentence(self) -> str:
        """Say what the numbers of a table are averages over."""
        if self.average == "images":
            return "mean(std) over images, Local-Avg over patches"
        return (
            "all pixels together with 95 % bootstrap interval; Local-Avg: mean(std) over patches, "
            "Local-Max: mean(std) over images"
        )


def named_method(name: str, methods: Sequence[str], what: str = "reference") -> str:
    """Return the method of this name; in any case, unless several differ in nothing else.

    Examples:
        >>> named_method("lts", ["UC", "LTS"])
        'LTS'
    """
    alike = [method for method in methods if method.casefold() == name.casefold()]
    if name in alike:
        return name
    if len(alike) != 1:
        raise InputError(f"{what} must be one of {', '.join(alike or methods)}, got '{name}'")
    return alike[0]


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

    def marked(self, bold: str, mark: str) -> str:
        """Return the number, as `bold % number` if it is the best, with a mark if it is beaten."""
        text = self.number()
        return f"{bold % text if self.best else text}{mark if self.beaten else ''}"

    def __str__(self) -> str:
        return self.marked("**%s**", "*")

    def __rich__(self) -> Text:
        return Text(self.marked("%s", "*"), style=f"{'bold' if self.best else ''} {'green' if self.beaten else ''}")


@dataclass(frozen=True)
class PaperTable:
    """A table that prints itself: as text with `print`, in colour with rich.

    Bold (`**`) is the best of a column; `*` (green) marks where the reference is significantly better. The floor of a
    method, what it would score if it were perfectly calibrated, is shown below it if it was measured. `titles` spells
    out the methods whose names are abbreviations, and `warnings` are printed below everything else. `whole` says that
    there is no background, so that *All* holds every labelled pixel. Metrics `by_region` are shown in every region, the
    others in *All* only.
    """

    methods: tuple[str, ...]
    cells: Mapping[tuple[str, str, str], Cell]
    presentation: Presentation
    floors: Mapping[tuple[str, str, str], Cell] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    whole: bool = False
    by_region: tuple[str, ...] = CALIBRATION

    @property
    def reference(self) -> str | None:
        """The method that the others are tested against."""
        return self.presentation.reference

    @property
    def quality(self) -> tuple[str, ...]:
        """Metrics of the quality, then a user's own."""
        return (*QUALITY, *self._own)

    @property
    def _own(self) -> list[str]:
        return [metric for metric in dict.fromkeys(metric for _, metric, _ in self.cells) if metric not in CATALOGUE]

    def __str__(self) -> str:
        return str(self._as_text("**bold**", Cell.__str__))

    def __rich__(self) -> TextTable:
        return self._as_text("bold", Cell.__rich__)

    def _as_text(self, bold: str, entry: Callable[[Cell], str | Text]) -> TextTable:
        columns, groups = self._grouped()
        rows = [
            [
                Text("  floor") if floor else Text(method, style="bold" if method == self.reference else ""),
                *(Text(cell.number(), style="dim") if floor else entry(cell) for cell in cells),
            ]
            for method, floor, cells in self.rows(columns)
        ]
        headings = [self.title(*column).replace(" ", "\n") for column in columns]
        return TextTable(["Method", *headings], rows, groups=groups, note=" ".join(self.notes(bold, "*")))

    def only(self, *metrics: str) -> PaperTable:
        """Return the table of some of the metrics, in every region."""
        return replace(
            self,
            cells={key: cell for key, cell in self.cells.items() if key[1] in metrics},
            floors={key: cell for key, cell in self.floors.items() if key[1] in metrics},
            by_region=metrics,
        )

    def legend(self) -> str:
        """Return what the marks mean."""
        return " ".join(self.notes("**bold**", "*"))

    def notes(self, bold: str, mark: str) -> list[str]:
        """Return what numbers, marks and names mean, in sentences; `bold` and `mark` are how the marks look."""
        notes = [f"{self.presentation.average_sentence()}; {bold}: best."]
        if self._own:
            notes.append(f"{', '.join(self._own)}: mean(std) over images, without marks (no direction is known).")
        if self.reference is not None:
            test = self.presentation.test_sentence()
            notes.append(f"{mark}: the reference {self.reference} is significantly better ({test}).")
        if self.floors:
            notes.append("floor: what the method would score if it were perfectly calibrated.")
        shown = in_table_order([*dict.fromkeys(region for _, region in self.columns(self.by_region))])
        if explained := region_notes(shown, whole=self.whole):
            notes.append(f"{'; '.join(explained)}.")
        if named := [f"{method}: {self.titles[method]}" for method in self.methods if method in self.titles]:
            notes.append(f"{'; '.join(named)}.")
        return [*notes, *(f"Warning: {text}." for text in self.warnings)]

    def _grouped(self) -> tuple[list[tuple[str, str]], list[int]]:
        """Return all columns, and how many belong together: those of a metric, and those of the quality."""
        apart = [metric for metric in (*CALIBRATION, *self.quality) if metric in self.by_region]
        others = [metric for metric in self.quality if metric not in self.by_region]
        groups = [own for metrics in (*([metric] for metric in apart), others) if (own := self.columns(metrics))]
        return [column for own in groups for column in own], [len(own) for own in groups]

    def columns(self, metrics: Sequence[str]) -> list[tuple[str, str]]:
        """Return the columns (metric, region) of these metrics, in the order of the table."""
        present = dict.fromkeys((metric, region) for _, metric, region in self.cells)
        regions = in_table_order([*dict.fromkeys(region for _, region in present)])
        return [
            (metric, region)
            for metric in metrics
            for region in regions
            if (metric, region) in present and (metric in self.by_region or region == "all")
        ]

    def rows(self, columns: Sequence[tuple[str, str]]) -> list[tuple[str, bool, list[Cell]]]:
        """Return the method of each line, whether the line is its floor, and the entries."""
        lines = []
        for method in self.methods:
            lines.append((method, False, [self.cells[(method, *column)] for column in columns]))
            if self.floors:
                lines.append((method, True, [self.floors[(method, *column)] for column in columns]))
        return lines

    def title(self, metric: str, region: str) -> str:
        """Return the heading of a column, without the region for metrics that are shown in *All* only."""
        heading = metric_named(metric).heading
        return f"{heading} {region_title(region)}" if metric in self.by_region else heading


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

    None if all print the same or the direction of the metric is not known, so that none is marked.
    """
    if metric not in CATALOGUE or len({number(metric, mean) for mean in means}) < 2:
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
    tested = [column for column in columns if column[0] in CATALOGUE]
    found = set[tuple[str, tuple[str, str]]]()
    for family in _families(tested, presentation.test):
        compared = [(method, column) for method in methods for column in family if method != reference]
        marks = significantly_better(
            [(units[(reference, *column)], units[(method, *column)]) for method, column in compared],
            lower_is_better=[metric not in HIGHER_IS_BETTER for _, (metric, _) in compared],
            test=presentation.test,
        )
        found |= {key for key, mark in zip(compared, marks, strict=True) if mark}
    return found


def _families(columns: Sequence[tuple[str, str]], test: Test) -> list[list[tuple[str, str]]]:
    """Return the columns that are corrected together: all, or with the paper's test those of its table, and others."""
    printed = [column for column in columns if column[0] in CALIBRATION or test != "paper"]
    return [family for family in (printed, [column for column in columns if column not in printed]) if family]
