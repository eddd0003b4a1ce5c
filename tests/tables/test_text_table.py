"""Tables in terminals of every width: nothing is cut, and what fits side by side stays so."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from segcal.tables import TextTable

TABLE = TextTable(
    ("method", "ECE\nAll", "ECE\nBoundary", "NLL"),
    [("UC", "12.34(5.67)", "23.45(6.78)", "0.1234 [0.1111, 0.2222]"), ("a long name", "1.00(2.00)", "3.00(4.00)", "-")],
    title="metrics",
    note="a note",
    groups=(2, 1),
)
ENTRIES = [entry for row in TABLE.rows for entry in row]


def shown(table: TextTable, width: int) -> str:
    console = Console(file=StringIO(), width=width, color_system=None)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_wide_terminals_show_one_block() -> None:
    assert [line.rstrip() for line in shown(TABLE, 100).splitlines()] == [
        "metrics",
        "                     ECE          ECE",
        "method               All     Boundary                      NLL",
        "UC           12.34(5.67)  23.45(6.78)  0.1234 [0.1111, 0.2222]",
        "a long name   1.00(2.00)   3.00(4.00)                        -",
        "a note",
    ]


def test_columns_of_a_group_stay_together() -> None:
    first, second = shown(TABLE, 50).split("\n\n")
    assert "Boundary" in first
    assert "NLL" not in first
    assert "UC           0.1234 [0.1111, 0.2222]" in second


@pytest.mark.parametrize("width", [*range(12, 40), 60, 100])
def test_every_entry_is_whole(width: int) -> None:
    found = shown(TABLE, width)
    assert max(map(len, found.splitlines())) <= width
    words = found.replace("\n", " ").split()
    for word in (word for entry in ENTRIES[1:4] + ENTRIES[5:] for word in str(entry).split()):
        assert word in words


def test_names_are_data() -> None:
    """Neither markup nor control characters of a name reach the terminal, and the columns stay aligned."""
    table = TextTable(("case", "x"), [("[red]a\x1b[31m", "1"), ("b", "22")])
    lines = shown(table, 40).splitlines()
    assert lines[1].startswith("[red]a\\x1b[31m")
    assert len({len(line.rstrip()) for line in lines}) == 1


def test_text_is_wrapped_beside_the_numbers() -> None:
    table = TextTable(("level", "NLL", ""), [("image", "0.1", "one temperature for each of the images")])
    lines = shown(table, 45).splitlines()
    assert lines[1].startswith("image  0.1  one temperature")
    assert len(lines) == 3
