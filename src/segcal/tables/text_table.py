"""Tables whose entries are text: terminal, LaTeX, Markdown and page show the same.

In a terminal of any width, columns that do not fit continue in a block below, and numbers are never cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from segcal.text import printable

GAP = 2
"""Spaces between columns."""
_NARROWEST_KEY = 8
_WIDTH = 100  # characters in a line of `str(table)`
_TEXT = 24  # width that columns of text, which have no heading and are wrapped, need at least

Entry = str | Text


@dataclass(frozen=True)
class TextTable:
    """Entries under headings.

    Attributes:
        headings: Heading of each column, of one or more lines; "" for a column of text, which is wrapped.
        rows: Entries of each row.
        title: What is shown.
        note: What the headings mean, or what follows from the numbers, in sentences.
        keys: Number of columns, from the left, that name a row; every block repeats them.
        groups: Numbers of neighbouring columns after the keys that stay in one block if they fit; by default 1 each.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    title: str = ""
    note: str = ""
    keys: int = 1
    groups: Sequence[int] = ()

    def __str__(self) -> str:
        written = StringIO()
        Console(file=written, width=_WIDTH, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in written.getvalue().splitlines())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [[_text(row[k]) for row in self.rows] for k in range(len(self.headings))]
        headings = [printable(heading, lines=True) for heading in self.headings]
        named = [[Text(heading), *own] for heading, own in zip(headings, columns, strict=True)]
        least, widths = [max(map(_word, own)) for own in named], [max(map(_width, own)) for own in named]
        widths = [
            width if heading else max(word, min(width, _TEXT))
            for heading, width, word in zip(headings, widths, least, strict=True)
        ]
        most = options.max_width
        room = most - max(least[self.keys :], default=0) - GAP  # for the keys
        keys = _shrunk(widths[: self.keys], room)
        if self.title:
            yield Text(printable(self.title), style="italic")
        if keys is None:
            yield from self._lines(headings, columns)
        else:
            widths = [*keys, *(min(width, most - sum(keys) - GAP * len(keys)) for width in widths[self.keys :])]
            taken = sum(keys) + GAP * len(keys)
            for k, block in enumerate(blocks(widths[self.keys :], most - taken, self.groups)):
                if k:
                    yield Text("")
                chosen = [*range(self.keys), *(self.keys + column for column in block)]
                yield self._block(chosen, widths, headings, columns)
        if self.note:
            yield Text(printable(self.note, lines=True), style="dim")

    def _block(
        self, chosen: Sequence[int], widths: Sequence[int], headings: Sequence[str], columns: Sequence[Sequence[Text]]
    ) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
        for k in chosen:
            width = widths[k] if headings[k] else None  # text takes the rest of the line
            left = k < self.keys or not headings[k]
            table.add_column(headings[k], justify="left" if left else "right", width=width, overflow="fold")
        for row in zip(*(columns[k] for k in chosen), strict=True):
            table.add_row(*row)
        return table

    def _lines(self, headings: Sequence[str], columns: Sequence[Sequence[Text]]) -> RenderResult:
        """Yield every entry in a line of its own, for terminals that are narrower than a name and a number."""
        for row in zip(*columns, strict=True):
            yield Text(" ").join(row[: self.keys])
            for heading, entry in zip(headings[self.keys :], row[self.keys :], strict=True):
                yield Text.assemble(f"  {heading} ".replace("\n", " "), entry)


def blocks(widths: Sequence[int], room: int, groups: Sequence[int] = ()) -> list[list[int]]:
    """Return the columns of each block, so that no block is wider than there is room unless one column is.

    Groups of columns stay together, if they are not wider than that by themselves.

    Examples:
        >>> blocks([4, 4, 4, 4], 12, groups=[2, 2])
        [[0, 1], [2, 3]]
        >>> blocks([4, 4, 4], 12), blocks([4, 4, 4], 12, groups=[3])
        ([[0, 1], [2]], [[0, 1], [2]])
    """
    found: list[list[int]] = []
    start = 0
    for size in groups or [1] * len(widths):
        whole = list(range(start, start + size))
        start += size
        for part in [whole] if _fits(whole, widths, room) else [[column] for column in whole]:
            if found and _fits([*found[-1], *part], widths, room):
                found[-1] += part
            else:
                found.append(part)
    return found


def _fits(columns: Sequence[int], widths: Sequence[int], room: int) -> bool:
    return sum(widths[column] + GAP for column in columns) - GAP <= room


def _shrunk(widths: Sequence[int], room: int) -> list[int] | None:
    """Return the widths of the keys, the widest made narrower if there is too little room; None if there is none."""
    kept = list(widths)
    excess = sum(kept) + GAP * (len(kept) - 1) - room
    if excess > 0:
        widest = kept.index(max(kept))
        kept[widest] -= excess
        if kept[widest] < _NARROWEST_KEY:
            return None
    return kept


def _text(entry: Entry) -> Text:
    return entry if isinstance(entry, Text) else Text(printable(entry))


def _width(entry: Text) -> int:
    return max((cell_len(line) for line in entry.plain.splitlines()), default=0)


def _word(entry: Text) -> int:
    return max((cell_len(word) for word in entry.plain.split()), default=0)
