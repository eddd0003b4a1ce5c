"""The paper's table in Markdown, in GitHub's table syntax."""

from __future__ import annotations

import re

from segcal.functional.catalogue import CALIBRATION, QUALITY
from segcal.tables.paper import Cell, PaperTable, title

MARK = r"\*"


def markdown_table(table: PaperTable) -> str:
    """Return two tables, of calibration and of quality, and what the marks mean."""
    parts = [_part(table, columns) for metrics in (CALIBRATION, QUALITY) if (columns := table.columns(metrics))]
    return "\n\n".join([*parts, "\n".join(_escaped(note) for note in table.notes("bold", "*"))]) + "\n"


def _part(table: PaperTable, columns: list[tuple[str, str]]) -> str:
    lines = [
        ["Method", *(title(*column) for column in columns)],
        ["---", *("---:" for _ in columns)],
        *(
            ["*floor*" if floor else _escaped(method), *(_number(cell) for cell in cells)]
            for method, floor, cells in table.rows(columns)
        ),
    ]
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
