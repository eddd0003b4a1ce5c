"""The paper's table from numbers worked by hand: what is best, what is marked, what is missing."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import pytest
from rich.console import Console

from segcal.tables import Cell, PaperTable, Presentation, paper_table

NAN = float("nan")
GOOD, BAD = np.arange(8) / 100, 0.5 + np.arange(8) / 100


def build(columns: Mapping[tuple[str, str], Mapping[str, object]], reference: str | None = None) -> PaperTable:
    samples = {(m, *column): np.asarray(v, float) for column, values in columns.items() for m, v in values.items()}
    return paper_table(samples, list(next(iter(columns.values()))), Presentation(reference))


def best(table: PaperTable, metric: str, region: str = "all") -> set[str]:
    return {method for method in table.methods if table.cells[(method, metric, region)].best}


def beaten(table: PaperTable, metric: str, region: str = "all") -> set[str]:
    return {method for method in table.methods if table.cells[(method, metric, region)].beaten}


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Cell("ece", 0.12345, 0.01), "12.35(1.00)"),
        (Cell("ece", 0.12345, 0.01, best=True), "**12.35(1.00)**"),
        (Cell("ece", 0.12345, 0.01, beaten=True), "12.35(1.00)*"),
        (Cell("nll", 0.12345, 0.01), "0.1235(0.0100)"),
        (Cell("ece", NAN, NAN), "-"),
        (Cell("ece", 0.12345, NAN, interval=(0.1, 0.2)), "12.35 [10.00, 20.00]"),
        (Cell("ece", 0.12345, NAN, interval=(NAN, NAN)), "12.35"),
    ],
)
def test_cell(cell: Cell, text: str) -> None:
    assert str(cell) == text
    assert cell.__rich__().plain == text.replace("**", "")


def test_mean_and_std_over_the_sample() -> None:
    cell = build({("ece", "all"): {"A": [0.1, 0.3, NAN], "B": [0.5, 0.5, 0.5]}}).cells[("A", "ece", "all")]
    assert (cell.mean, cell.std) == pytest.approx((0.2, 0.1))


@pytest.mark.parametrize(
    ("metric", "wanted"), [("ece", "B"), ("ace", "B"), ("nll", "B"), ("accuracy", "C"), ("miou", "C")]
)
def test_lower_is_better_for_errors_and_higher_for_quality(metric: str, wanted: str) -> None:
    assert best(build({(metric, "all"): {"A": [0.2], "B": [0.1], "C": [0.3]}}), metric) == {wanted}


def test_equals_share_the_bold_unless_all_are_equal() -> None:
    table = build({("ece", "all"): {"A": [0.1], "B": [0.1], "C": [0.3]}, ("miou", "all"): {m: [0.5] for m in "ABC"}})
    assert best(table, "ece") == {"A", "B"}
    assert best(table, "miou") == set()


def test_methods_with_the_same_digits_are_best_together() -> None:
    """0.123412 and 0.123408 are printed as 12.34 % both; where all print the same, none is best."""
    table = build({("ece", "all"): {"A": [0.123412], "B": [0.123408], "C": [0.2]}})
    assert best(table, "ece") == {"A", "B"}
    assert best(build({("ece", "all"): {"A": [0.123412], "B": [0.123408]}}), "ece") == set()


def test_missing_values_are_neither_best_nor_marked() -> None:
    table = build({("ece", "all"): {"A": [NAN] * 8, "B": BAD, "C": GOOD}}, reference="C")
    assert best(table, "ece") == {"C"}
    assert beaten(table, "ece") == {"B"}
    empty = build({("ece", "all"): {"A": [NAN], "B": [NAN]}}, reference="A")
    assert best(empty, "ece") == beaten(empty, "ece") == set()
    assert str(empty).count(" -") >= 2


def test_marks_say_where_the_reference_is_better() -> None:
    columns = {
        ("ece", "all"): {"ref": GOOD, "worse": BAD, "same": GOOD},
        ("ece", "boundary"): {"ref": BAD, "worse": GOOD, "same": BAD},
        ("accuracy", "all"): {"ref": BAD, "worse": GOOD, "same": BAD},  # here more is better
    }
    table = build(columns, reference="ref")
    assert beaten(table, "ece") == {"worse"}
    assert beaten(table, "ece", "boundary") == set()
    assert beaten(table, "accuracy") == {"worse"}
    assert not any(cell.beaten for cell in build(columns).cells.values())


def test_text_of_the_whole_table() -> None:
    columns = {
        ("ece", "all"): {"UC": [0.2, 0.4], "TS": [0.1, 0.1]},
        ("ece", "local-max"): {"UC": [0.5, 0.5], "TS": [0.6, 0.6]},
        ("nll", "all"): {"UC": [1.0, 1.0], "TS": [2.0, 2.0]},
    }
    assert str(build(columns)).splitlines() == [
        "                ECE(%)↓          ECE(%)↓",
        "Method              All        Local-Max                NLL↓",
        "UC         30.00(10.00)  **50.00(0.00)**  **1.0000(0.0000)**",
        "TS      **10.00(0.00)**      60.00(0.00)      2.0000(0.0000)",
        "mean(std) over images, Local-Avg over patches; **bold**: best. All: labelled pixels outside the",
        "background, and Boundary; Local-Max: the worst patch of each image.",
    ]


def test_legend_names_the_reference() -> None:
    table = build({("ece", "all"): {"UC": BAD, "TS": GOOD}}, reference="TS")
    test = "paired Wilcoxon over images or groups, Benjamini-Hochberg at 0.05"
    assert f"*: the reference TS is significantly better ({test})." in " ".join(str(table).split())


def test_figures_over_all_pixels_replace_means_where_there_are_some() -> None:
    samples = {("A", "ece", "all"): GOOD, ("B", "ece", "all"): BAD}
    samples |= {("A", "ece", "local-avg"): GOOD, ("B", "ece", "local-avg"): BAD}
    pooled = {("A", "ece", "all"): (0.3, 0.2, 0.4), ("B", "ece", "all"): (0.1, 0.05, 0.2)}
    table = paper_table(samples, ["A", "B"], Presentation(average="pixels"), pooled=pooled, titles={"A": "method a"})
    assert table.cells[("A", "ece", "all")].number() == "30.00 [20.00, 40.00]"
    assert best(table, "ece") == {"B"}  # by the figures shown, not by the means over images
    assert best(table, "ece", "local-avg") == {"A"}
    assert "all pixels together with 95 % bootstrap interval" in table.legend()
    assert table.legend().endswith("A: method a.")


@pytest.mark.parametrize("width", [80, 130, 260])
def test_rich_shows_every_number_at_any_width(width: int) -> None:
    regions = ("all", "boundary", "local-avg", "local-max")
    random = np.random.default_rng(0)
    columns = {(m, r): {"UC": random.random(4), "TS": random.random(4)} for m in ("ece", "ace") for r in regions}
    table = build(columns, reference="TS")
    shown = io.StringIO()
    Console(width=width, file=shown, color_system=None).print(table)
    for cell in table.cells.values():
        assert str(cell).replace("**", "") in shown.getvalue()


def test_the_papers_test_corrects_the_columns_of_its_table_alone() -> None:
    """An ECE with p = 0.045 is marked beside a family of twelve columns that are equal, and one of quality that is not.

    Wilcoxon's test has p = 0.008 for both, which is not significant among all fourteen.
    """
    regions = ("all", "boundary", "local-avg", "local-max")
    equal = [(metric, region) for metric in ("nll", "brier", "miou") for region in regions]
    samples = {(method, *column): GOOD for column in equal for method in "AB"}
    samples |= {("A", "ece", "all"): GOOD, ("B", "ece", "all"): GOOD + 0.03}
    samples |= {("A", "accuracy", "all"): BAD, ("B", "accuracy", "all"): GOOD}
    marked = {}
    for test in ("paper", "wilcoxon"):
        table = paper_table(samples, ["A", "B"], Presentation("A", test=test))
        marked[test] = {metric for (_, metric, _), cell in table.cells.items() if cell.beaten}
    assert marked["paper"] == {"ece", "accuracy"}
    assert marked["wilcoxon"] == set()
