"""The tables of the result pages are those that their commands print from the archived measurements."""

from __future__ import annotations

import pytest

from benchmarks import coverage
from experiments.beyond.__main__ import main as beyond
from experiments.choices.__main__ import CHOICES, table_of
from experiments.pages import BEGIN, END, FOLDER, PAGES, filled

Captured = pytest.CaptureFixture[str]


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


def test_every_digit_of_beyond_lts_is_printed_by_its_command(capsys: Captured) -> None:
    assert beyond(["table"]) == 0
    printed = set(tables_of(capsys.readouterr().out))
    shown = tables_of((FOLDER / "beyond-lts.md").read_text(encoding="utf-8"))
    assert len(shown) >= 39
    assert [table for table in shown if table not in printed] == []
