"""The tables of the result pages are those that their commands print from the archived measurements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.beyond.__main__ import main as beyond
from experiments.camvid.__main__ import main as camvid
from experiments.coco.__main__ import main as coco
from experiments.lpba40.__main__ import main as volumes

PAGES = Path(__file__).parents[2] / "docs" / "results"
Captured = pytest.CaptureFixture[str]


def print_camvid(folder: Path) -> int:
    return camvid(["unpack", "--out", str(folder)]) or camvid(["table", "--out", str(folder)])


def print_beyond(_: Path) -> int:
    return beyond(["table"])


def print_voc(_: Path) -> int:
    return coco(["table"])


def print_volumes(_: Path) -> int:
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


# first cells of the tables that no command prints; each is described on its page
BY_HAND = {
    "camvid": ("| | seconds |", "| rows below |", "| | numbers |", "| | LTS, segcal's |", "| | epochs "),
    "beyond-lts": ("| reads |", "| NLL against TS, %: mean (worst), splits | 2 images |"),
    "voc": (),
    "volumes": ("| preset |",),
}


@pytest.mark.parametrize(
    ("page", "print_tables", "least"),
    [
        ("camvid", print_camvid, 45),
        ("beyond-lts", print_beyond, 39),
        ("voc", print_voc, 6),
        ("volumes", print_volumes, 33),
    ],
)
def test_every_digit_of_a_page_is_printed_by_its_command(
    page: str, print_tables: Callable[[Path], int], least: int, tmp_path: Path, capsys: Captured
) -> None:
    assert print_tables(tmp_path) == 0
    printed = set(tables_of(capsys.readouterr().out))
    shown = [
        table
        for table in tables_of((PAGES / f"{page}.md").read_text(encoding="utf-8"))
        if not table.startswith(BY_HAND[page])
    ]
    assert len(shown) >= least
    assert [table for table in shown if table not in printed] == []
