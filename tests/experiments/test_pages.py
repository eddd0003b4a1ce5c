"""The tables of the result pages are those that their commands print from the archived measurements."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from experiments.beside_paper import paper_numbers
from experiments.beyond.__main__ import main as beyond
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


def numbers_of(text: str) -> list[str]:
    """Return the decimal numbers of a text."""
    return re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", text)


@pytest.mark.parametrize("page", ["camvid", "voc", "beyond-lts", "volumes", "passes"])
def test_numbers_of_the_prose_are_those_of_the_tables(page: str) -> None:
    """Each is some number that a command prints, or the paper, rounded: as it is, or in percent."""
    text = re.sub(r"```.*?```", "", (FOLDER / f"{page}.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    printed = [line for line in text.splitlines() if line.startswith(("|", "Networks: "))]
    prose = [line for line in text.splitlines() if line not in printed]
    known = [float(number) for number in numbers_of("\n".join(printed))]
    known += [float(number) for cell in paper_numbers("lpba40").values() for number in numbers_of(cell)]
    for number in numbers_of("\n".join(prose)):
        half = 0.5001 * 10.0 ** -len(number.partition(".")[2])
        assert any(abs(scale * one - float(number)) <= half for one in known for scale in (1, 100)), number
