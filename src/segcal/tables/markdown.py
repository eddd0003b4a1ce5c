"""The paper's table in Markdown, in GitHub's table syntax."""

from __future__ import annotations

import re
from collections.abc import Sequence

from segcal.functional.catalogue import CALIBRATION
from segcal.tables.paper import Cell, PaperTable, title
from segcal.tables.text_table import TextTable

MARK = r"\*"


def markdown_table(table: PaperTable, further: Sequence[TextTable] = ()) -> str:
    """Return tables of calibration and of quality and what their marks mean, then further tables."""
    parts = [_part(table, columns) for metrics in (CALIBRATION, table.quality) if (columns := table.columns(metrics))]
    parts.append("\n".join(_escaped(note) for note in table.notes("bold", "*")))
    for other in further:
        rows = [[_escaped(str(entry)) for entry in row] for row in other.rows]
        parts += [f"{_escaped(other.title)}:", _lines(other.headings, rows), _escaped(other.note)]
    return "\n\n".join(parts) + "\n"


def _part(table: PaperTable, columns: list[tuple[str, str]]) -> str:
    rows = [
        ["*floor*" if floor else _escaped(method), *(_number(cell) for cell in cells)]
        for method, floor, cells in table.rows(columns)
    ]
    return _lines(["Method", *(title(*column) for column in columns)], rows)


def _lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[_escaped(heading) for heading in headings], ["---", *("---:" for _ in headings[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(cell: Cell) -> str:
    text = cell.number()
    return f"{f'**{text}**' if cell.best else text}{MARK if cell.beaten else ''}"


def _escaped(text: str) -> str:
    r"""Return text that Markdown shows verbatim, on one line.

    Examples:
        >>> print(_escaped("a|b *c* <d>"))
        a\|b \*c\* \<d\>
    """
    return re.sub(r"([\\`*_{}\[\]<>#|~&$!])", r"\\\1", " ".join(text.split()))
