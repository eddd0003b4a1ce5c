"""A table beside the paper's, as terminal, LaTeX and Markdown show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FurtherTable:
    """Entries as text.

    Attributes:
        title: What is shown.
        first: Heading of the names of the rows.
        headings: Of the other columns.
        rows: The entries of each row by its name, in the order of the headings.
        note: What the headings mean, or what follows from the numbers; a sentence without its full stop.
    """

    title: str
    first: str
    headings: Sequence[str]
    rows: Mapping[str, Sequence[str]]
    note: str
