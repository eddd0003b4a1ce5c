"""Text from outside is data: it steers no terminal, no spreadsheet and no markup."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import segcal
from segcal.cli.console import PlainConsole
from segcal.evaluation.saved import write_table
from segcal.files import read_json, write_json
from segcal.tables.text_table import TextTable
from segcal.text import as_cell, from_cell, is_utf8, printable

ESCAPED = {
    "x[/red]": "x[/red]",
    "[bold]x": "[bold]x",
    "a\x1b[2Jb": "a\\x1b[2Jb",
    "a\x9b31mb": "a\\x9b31mb",
    "line\nbreak": "line\\nbreak",
    "\udcff.npy": "\\udcff.npy",
    "a\u202eb": "a\\u202eb",
    ":smile:": ":smile:",
    "\r": "\\r",
    "\x07": "\\x07",
}


@given(st.text())
def test_printable_text_steers_nothing(text: str) -> None:
    shown = printable(text)
    assert printable(shown) == shown
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in shown)
    assert is_utf8(shown)
    if text.isascii() and text.isprintable():
        assert shown == text


def test_printable_escapes_what_it_changes() -> None:
    assert {text: printable(text) for text in ESCAPED} == ESCAPED


@pytest.mark.parametrize("text", ESCAPED)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_the_console_shows_names_as_they_are(text: str, encoding: str) -> None:
    """On a terminal, where Rich would otherwise pass escapes on: as a line, in a table, and in its title."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace")
    console = PlainConsole(file=file, force_terminal=True, width=200, color_system=None)
    table = TextTable(("name", "value"), [(text, "1")], title=f"of {text}")
    for shown in (text, f"saved in {text} \u2193", table):
        console.print(shown, style="bold")
    file.flush()
    output = raw.getvalue().decode(encoding)
    assert "\x1b[2J" not in output
    assert not set(output) & set("\x07\x9b\u202e\r")
    assert (f"{printable(text, lines=True).splitlines()[-1]} v" in output) is (encoding != "utf-8")
    assert output.count(printable(text, lines=True).splitlines()[0]) >= 4


@given(st.text())
def test_cells_are_read_back_and_are_no_formulas(text: str) -> None:
    assert from_cell(as_cell(text)) == text
    assert not as_cell(text).startswith(("=", "+", "-", "@", "\t", "\r"))


def test_tables_hold_no_formulas(tmp_path: Path) -> None:
    names = ["=cmd|' /C calc'!A1", "+1", "-x", "@sum", "plain", "'=quoted"]
    write_table(pd.DataFrame({"case": names, "method": "-TS", "value": -0.5}), tmp_path / "a.csv")
    rows = list(csv.reader((tmp_path / "a.csv").read_text().splitlines()))[1:]
    assert [row[0][0] for row in rows] == ["'", "'", "'", "'", "p", "'"]
    assert {row[1] for row in rows} == {"'-TS"}
    assert {row[2] for row in rows} == {"-0.5"}


def test_names_that_are_not_utf8_are_written_to_json(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"name": "\udcff\u2193"})
    assert read_json(tmp_path / "a.json") == {"name": "\udcff\u2193"}
    assert "\u2193".encode() in (tmp_path / "a.json").read_bytes()


def test_a_warning_points_at_the_line_outside_of_segcal() -> None:
    case = segcal.Case("a", np.zeros((2, 4, 4), np.float32), np.zeros((4, 4), np.uint8))
    with pytest.warns(segcal.CalibrationWarning, match="no better than chance") as caught:
        segcal.create("ts", 2).fit([case])
    assert [warning.filename for warning in caught] == [__file__]
