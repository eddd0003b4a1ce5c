"""The tables of the result pages are those that their commands print from the archived measurements."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks import coverage
from experiments.beyond.__main__ import main as beyond
from experiments.choices.__main__ import CHOICES, table_of
from experiments.lpba40.__main__ import main as volumes
from experiments.pages import BEGIN, END, FOLDER, PAGES, filled

Captured = pytest.CaptureFixture[str]


def print_beyond() -> int:
    return beyond(["table"])


def print_volumes() -> int:
    return volumes(["table"])


def tables_of(text: str) -> list[str]:
    """Return the Markdown tables of a text, each as one string."""
    tables, rows = list[str](), list[str]()
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append(line)
        elif rows:
            tables.append("\n".join(rows))
            rows = []
    return tables


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_is_printed_and_no_other_table(page: str) -> None:
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    assert filled(page) == text
    before, _, rest = text.partition(BEGIN)
    printed, _, after = rest.partition(END)
    assert len(tables_of(printed)) >= 6
    assert tables_of(before) == tables_of(after) == []


CHOSEN = {
    "decisions": "guide/decisions.md",
    "pooling": "guide/passes.md",
    "settling": "methods/local-temperature-scaling.md",
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_page_shows_what_its_choice_was_made_by(name: str) -> None:
    text = (FOLDER.parent / CHOSEN[name]).read_text(encoding="utf-8")
    assert table_of(name) in tables_of(text)


def test_the_coverage_of_intervals_is_the_one_that_is_kept() -> None:
    assert tables_of((FOLDER / "statistics.md").read_text(encoding="utf-8")) == [coverage.table()]


# first cells of the tables that no command prints; each is described on its page
BY_HAND = {"beyond-lts": (), "volumes": ("| preset |",)}


@pytest.mark.parametrize(
    ("page", "print_tables", "least"), [("beyond-lts", print_beyond, 39), ("volumes", print_volumes, 33)]
)
def test_every_digit_of_a_page_is_printed_by_its_command(
    page: str, print_tables: Callable[[], int], least: int, capsys: Captured
) -> None:
    assert print_tables() == 0
    printed = set(tables_of(capsys.readouterr().out))
    shown = [
        table
        for table in tables_of((FOLDER / f"{page}.md").read_text(encoding="utf-8"))
        if not table.startswith(BY_HAND[page])
    ]
    assert len(shown) >= least
    assert [table for table in shown if table not in printed] == []
