"""The paper's table in Markdown, in GitHub's table syntax."""

from __future__ import annotations

import re

from segcal.functional.catalogue import CALIBRATION, QUALITY
from segcal.tables.paper import Cell, PaperTable, title
from segcal.tables.surfaces import TITLE, SurfaceTable

MARK = r"\*"


def markdown_table(table: PaperTable, surfaces: SurfaceTable | None = None) -> str:
    """Return tables of calibration and of quality and what their marks mean, then that of the segmentation if given."""
    parts = [_part(table, columns) for metrics in (CALIBRATION, QUALITY) if (columns := table.columns(metrics))]
    parts.append("\n".join(_escaped(note) for note in table.notes("bold", "*")))
    if surfaces is not None:
        parts += [f"{_escaped(TITLE)}:", _segmentation(surfaces), f"{_escaped(surfaces.note())}."]
    return "\n\n".join(parts) + "\n"


def _part(table: PaperTable, columns: list[tuple[str, str]]) -> str:
    rows = [
        ["*floor*" if floor else _escaped(method), *(_number(cell) for cell in cells)]
        for method, floor, cells in table.rows(columns)
    ]
    return _lines([title(*column) for column in columns], rows)


def _segmentation(surfaces: SurfaceTable) -> str:
    rows = [[_escaped(method), *(_number(cell) for cell in cells)] for method, cells in surfaces.rows.items()]
    return _lines(surfaces.headings, rows)


def _lines(headings: list[str], rows: list[list[str]]) -> str:
    lines = [["Method", *headings], ["---", *("---:" for _ in headings)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(cell: Cell) -> str:
    text = cell.number()
    return f"{f'**{text}**' if cell.best else text}{MARK if cell.beaten else ''}"


def _escaped(text: str) -> str:
    r"""Return text that Markdown shows verbatim, on one line.

    >>> print(_escaped("a|b *c* <d>"))
    a\|b \*c\* \<d\>
    """
    return re.sub(r"([\\`*_{}\[\]<>#|~&$!])", r"\\\1", " ".join(text.split()))
