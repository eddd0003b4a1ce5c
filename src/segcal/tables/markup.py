"""The paper's table in LaTeX (Local-Max in brackets below Local-Avg) and in Markdown, best in bold."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import methodcaller

from segcal.functional.catalogue import CALIBRATION, CATALOGUE
from segcal.regions import region_title
from segcal.tables.paper import PaperTable
from segcal.tables.text_table import TextTable

_latex, _markdown = methodcaller("marked", r"\textbf{%s}", "$^{*}$"), methodcaller("marked", "**%s**", r"\*")

_SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    **{"ß": r"\ss{}", "æ": r"\ae{}", "Æ": r"\AE{}", "ø": r"\o{}", "Ø": r"\O{}", "ł": r"\l{}", "Ł": r"\L{}"},
    **{"œ": r"\oe{}", "Œ": r"\OE{}", "\u2013": "--", "\u2014": "---", "\u2019": "'"},
}
_ACCENTS = dict(
    zip("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327", "`'^~=u.\"rHvc", strict=True)
)


def latex_table(table: PaperTable, further: Sequence[TextTable] = ()) -> str:
    r"""Return a `table*` in plain ASCII for a document that loads graphicx; no other package is needed.

    Calibration and quality, then further tables.
    """
    lines = ["% \\usepackage{graphicx}", "\\begin{table*}[t]", "\\centering"]
    if columns := table.columns(CALIBRATION):
        *start, end = _calibration(table, columns)
        lines += ["\\resizebox{\\textwidth}{!}{%", *start, f"{end}%", "}"]
    if columns := table.columns(table.quality):
        rows = [[_name(table, method, floor), *map(_latex, cells)] for method, floor, cells in table.rows(columns)]
        lines += ["", "\\medskip", *_plain(["Method", *(table.title(*column) for column in columns)], rows)]
    notes = table.notes("bold", "*")
    for other in further:
        rows = [
            [_name(table, str(name), False), *(latex_text(str(entry)) for entry in own)] for name, *own in other.rows
        ]
        lines += ["", "\\medskip", *_plain(other.headings, rows)]
        notes.append(f"{other.title}. {other.note}")
    lines += [f"\\caption{{{latex_text(' '.join(notes))}}}", "\\end{table*}"]
    return "\n".join(lines) + "\n"


def _calibration(table: PaperTable, columns: Sequence[tuple[str, str]]) -> list[str]:
    """Columns of each metric: one per region, with *[Local-Max]* below *Local-Avg*."""
    shown = [column for column in columns if column[1] != "local-max"]
    heads, rules, at = [], [], 2
    for metric, own in groupby(shown, key=lambda column: column[0]):
        many = len(list(own))
        heads.append(f"\\multicolumn{{{many}}}{{c}}{{{latex_text(CATALOGUE[metric].heading)}}}")
        rules.append(f"\\cline{{{at}-{at + many - 1}}}")
        at += many
    regions = [f"\\textit{{{latex_text(region_title(region))}}}" for _, region in shown]
    below = ["\\textit{Local-Max}" if (m, "local-max") in columns and r == "local-avg" else "" for m, r in shown]
    body = []
    for method, floor, cells in table.rows(columns):
        numbers = {column: _latex(cell) for column, cell in zip(columns, cells, strict=True)}
        worst = [numbers.get((metric, "local-max"), "") if region == "local-avg" else "" for metric, region in shown]
        body += _two_lines([_name(table, method, floor), *(numbers[column] for column in shown)], worst)
    head = [_line(["", *heads]), " ".join(rules), *_two_lines(["Method", *regions], below)]
    return _tabular(len(shown), head, body)


def _plain(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return _tabular(len(headings) - 1, [_line(map(latex_text, headings))], map(_line, rows))


def _tabular(numbers: int, head: Iterable[str], body: Iterable[str]) -> list[str]:
    return [
        f"\\begin{{tabular}}{{l{'c' * numbers}}}",
        *("\\hline", *head),
        *("\\hline", *body),
        *("\\hline", "\\end{tabular}"),
    ]


def _two_lines(upper: Sequence[str], lower: Sequence[str]) -> list[str]:
    """A line and, if there are any, the entries below it in brackets; the first column has none below."""
    if not any(lower):
        return [_line(upper)]
    return [_line(upper), f"{_line(['', *(f'[{entry}]' if entry else '' for entry in lower)])}[2pt]"]


def _line(entries: Iterable[str]) -> str:
    return f"{' & '.join(entries)} \\\\"


def _name(table: PaperTable, method: str, floor: bool) -> str:
    if floor:
        return "\\quad\\textit{floor}"
    return f"\\textbf{{{latex_text(method)}}}" if method == table.reference else latex_text(method)


def latex_text(text: str) -> str:
    r"""Return text that LaTeX prints verbatim, in ASCII: accents as commands, other characters as code points.

    Examples:
        >>> print(latex_text("50% of A_1 & Zürich, α"))
        50\% of A\_1 \& Z\"{u}rich, [U+03B1]
    """
    return "".join(_character(character) for character in " ".join(text.split()))


def _character(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    if " " <= character <= "~":
        return character
    base, marks = (plain := unicodedata.normalize("NFD", character))[0], plain[1:]
    if base.isascii() and base.isalpha() and marks in _ACCENTS:
        return f"\\{_ACCENTS[marks]}{{{base}}}"
    return f"[U+{ord(character):04X}]"


def markdown_table(table: PaperTable, further: Sequence[TextTable] = ()) -> str:
    """Return tables of calibration and of quality and what their marks mean, then further tables."""
    parts = [_piped(table, columns) for metrics in (CALIBRATION, table.quality) if (columns := table.columns(metrics))]
    parts.append("\n".join(markdown_text(note) for note in table.notes("bold", "*")))
    for other in further:
        rows = [[markdown_text(str(entry)) for entry in row] for row in other.rows]
        parts += [f"{markdown_text(other.title)}:", _lines(other.headings, rows), markdown_text(other.note)]
    return "\n\n".join(parts) + "\n"


def _piped(table: PaperTable, columns: list[tuple[str, str]]) -> str:
    rows = [
        ["*floor*" if floor else markdown_text(method), *map(_markdown, cells)]
        for method, floor, cells in table.rows(columns)
    ]
    return _lines(["Method", *(table.title(*column) for column in columns)], rows)


def _lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[markdown_text(heading) for heading in headings], ["---", *("---:" for _ in headings[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_text(text: str) -> str:
    r"""Return text that Markdown shows verbatim, on one line.

    Examples:
        >>> print(markdown_text("a|b *c* <d>"))
        a\|b \*c\* \<d\>
    """
    return re.sub(r"([\\`*_{}\[\]<>#|~&$!])", r"\\\1", " ".join(text.split()))
