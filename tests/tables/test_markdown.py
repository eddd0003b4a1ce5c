"""The table in Markdown, read back by a parser: every number in its place, and names as they are."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from segcal.tables import PaperTable, markdown_table
from support.paper_tables import build


class Cells(HTMLParser):
    """The tables of a page, as text, with bold in <>."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.tags: set[str] = set()
        self.inside = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.inside = True
        elif tag == "strong":
            self.handle_data("<")

    def handle_endtag(self, tag: str) -> None:
        if tag == "strong":
            self.handle_data(">")
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.tables[-1][-1][-1] += data


def parsed(table: PaperTable) -> Cells:
    page = Cells()
    page.feed(MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown_table(table)))
    return page


def test_every_number_is_in_its_place() -> None:
    table = build()
    calibration, quality = parsed(table).tables
    assert calibration[0][:2] == ["Method", "ECE(%)↓ All"]
    assert [len(row) for row in calibration] == [17, 17, 17]
    assert quality[0] == ["Method", "Accuracy(%)↑", "mIoU(%)↑", "NLL↓", "Brier↓"]
    for row, method in zip(calibration[1:], ("UC", "LTS"), strict=True):
        assert row[0] == method
        for text, column in zip(row[1:], [(m, r) for m in ("ece", "mce", "sce", "ace") for r in
                                          ("all", "boundary", "local-avg", "local-max")], strict=True):  # fmt: skip
            cell = table.cells[(method, *column)]
            number = f"<{cell.number()}>" if cell.best else cell.number()
            assert text == number + ("*" if cell.beaten else "")


def test_floors_stand_below_their_methods() -> None:
    calibration, quality = parsed(build(floor=True)).tables
    for part in (calibration, quality):
        assert [row[0] for row in part[1:]] == ["UC", "floor", "LTS", "floor"]


ALLOWED = {"table", "thead", "tbody", "tr", "td", "th", "strong", "em", "p"}


@pytest.mark.parametrize(
    "name",
    ["a|b", "*x*", "<img src=x onerror=alert(1)>", "[l](http://x)", "`c`", "__d__", "\\", "&lt;", "![i](j)", "#"],
)
def test_names_are_shown_as_they_are(name: str) -> None:
    page = parsed(build(("UC", name)))
    assert [row[0] for row in page.tables[0]] == ["Method", "UC", name]
    assert page.tags <= ALLOWED
    page = parsed(build(regions=("all", name)))  # a region of a user
    heading = page.tables[0][0]
    assert heading[1].endswith(" All")
    assert heading[2].endswith(f" {name}")
    assert len(heading) == len(page.tables[0][1]) == 9
    assert page.tags <= ALLOWED


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=12).filter(str.strip))
def test_any_name_stays_text(name: str) -> None:
    page = parsed(build(("UC", name)))
    assert page.tables[0][2][0] == " ".join(name.split())
    assert page.tags <= ALLOWED
