"""Text that is shown or stored: warnings, and names of files, classes and methods, which are data, never instructions.

Nothing heavy is imported here, so that the commands can handle warnings from the start.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches

_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Characters that steer a terminal or hide text, and bytes of file names that are not UTF-8; not the line break."""

_FORMULA = re.compile("'*[=+\\-@\t\r]")
"""Beginning of a cell that a spreadsheet would compute."""


class CalibrationWarning(UserWarning):
    """Data or settings that give an answer, but perhaps not to the question that was meant; says what to do."""

    __module__ = "segcal"  # as `segcal.types.public` does for other names


def warn_caller(message: str) -> None:
    """Issue a `CalibrationWarning` at the line outside of segcal from which it was called."""
    level = 3
    frame = sys._getframe(1).f_back
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "segcal":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, CalibrationWarning, stacklevel=level)


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return text with characters that steer a terminal written as escapes, as `repr` writes them.

    Line breaks are kept with `lines`, and become escapes otherwise.

    Examples:
        >>> print(printable("a\x1b[31m.png"), printable("two\nlines"))
        a\x1b[31m.png two\nlines
    """
    shown = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
    return shown if lines else shown.replace("\n", "\\n")


def is_utf8(text: str) -> bool:
    """Return whether text can be written as UTF-8; names of files that are not can not."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def as_cell(text: str) -> str:
    """Return text for a cell of a CSV file, in which it is not a formula: OWASP's leading apostrophe.

    Examples:
        >>> as_cell("=cmd|' /C calc'!A1"), as_cell("scan 1"), from_cell(as_cell("'=1"))
        ("'=cmd|' /C calc'!A1", 'scan 1', "'=1")
    """
    return f"'{text}" if _FORMULA.match(text) else text


def from_cell(text: str) -> str:
    """Return what `as_cell` was given."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun.

    Examples:
        >>> counted(1, "step"), counted(1200, "step"), counted(2, "patch", "patches")
        ('1 step', '1,200 steps', '2 patches')
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def both_classes(channel: str) -> tuple[str, str]:
    """Return the names of the two classes of a sigmoid channel, of which the channel itself is the second.

    Examples:
        >>> both_classes("vessel")
        ('not vessel', 'vessel')
    """
    return f"not {channel}", channel


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'lts'?" for the nearest known word, or nothing if none is near.

    Examples:
        >>> suggestion("lst", ["ts", "lts", "isotonic"])
        "; did you mean 'lts'?"
    """
    near = get_close_matches(word.lower(), list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
