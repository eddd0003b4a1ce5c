"""The table in LaTeX: its layout, text that cannot break it, and, where pdflatex is there, that it compiles."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segcal.tables import latex_table
from segcal.tables.markup import latex_text
from support.paper_tables import REGIONS, build

HOSTILE = '\\input{x} 50%_#1 & {a}$^~<|>"\u00fc \u00df \u03b1\u2019 \\\\[2pt] }'


def rows_of(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if re.search(r"\\\\(\[2pt\])?$", line)]
    return [[entry.strip() for entry in re.sub(r"\\\\(\[2pt\])?$", "", line).split(" & ")] for line in lines]


def test_layout_of_the_paper() -> None:
    """Each metric has All, Boundary and Local-Avg, and [Local-Max] in the line below."""
    table = build()
    rows = rows_of(latex_table(table))
    assert [entry for entry in rows[0] if entry] == [
        rf"\multicolumn{{3}}{{c}}{{{metric}(\%)$\downarrow$}}" for metric in ("ECE", "MCE", "SCE", "ACE")
    ]
    assert rows[1] == ["Method", *(4 * [r"\textit{All}", r"\textit{Boundary}", r"\textit{Local-Avg}"])]
    assert rows[2] == ["", *(4 * ["", "", r"[\textit{Local-Max}]"])]
    cell = table.cells[("UC", "ece", "all")]
    assert rows[3][:2] == ["UC", f"{100 * cell.mean:.2f}({100 * cell.std:.2f})$^{{*}}$"]
    worst = table.cells[("LTS", "ace", "local-max")]
    assert rows[6][-1] == f"[\\textbf{{{worst.number()}}}]"
    assert rows[5][0] == r"\textbf{LTS}"
    assert rows[7] == [
        "Method",
        r"Accuracy(\%)$\uparrow$",
        r"mIoU(\%)$\uparrow$",
        r"NLL$\downarrow$",
        r"Brier$\downarrow$",
    ]


def test_every_line_has_as_many_entries_as_columns() -> None:
    for regions in (REGIONS, REGIONS[:2], ("all",)):
        text = latex_table(build(regions=regions))
        for width, body in re.findall(r"\\begin\{tabular\}\{l(c+)\}(.*?)\\end\{tabular\}", text, flags=re.DOTALL):
            for row in rows_of(body):
                spans = [int(span) - 1 for entry in row for span in re.findall(r"\\multicolumn\{(\d)\}", entry)]
                assert len(row) + sum(spans) == len(width) + 1
        assert ("Local-Max" in text) == ("local-max" in regions)


def test_floors_stand_below_their_methods() -> None:
    names = [row[0] for row in rows_of(latex_table(build(floor=True))) if row[0]]
    assert names[1:5] == ["UC", r"\quad\textit{floor}", r"\textbf{LTS}", r"\quad\textit{floor}"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b & c%", r"a\_b \& c\%"),
        ("\\x{y}", r"\textbackslash{}x\{y\}"),
        ("é Å č ñ", r"\'{e} \r{A} \v{c} \~{n}"),
        ("line\nbreak\t tab", "line break tab"),
        ("β\x07", "[U+03B2][U+0007]"),
    ],
)
def test_text_is_escaped(text: str, expected: str) -> None:
    assert latex_text(text) == expected


@given(st.text(max_size=20))
def test_text_is_ascii_without_commands_of_its_own(text: str) -> None:
    escaped = latex_text(text)
    assert escaped.isascii()
    assert escaped.isprintable()
    named = "text(backslash|asciitilde|asciicircum|less|greater|bar)|downarrow|uparrow|ss|ae|AE|oe|OE"
    known = rf"\\({named}|[&%$#_{{}}oOlL`'^~=u.\"rHvc])"
    rest = re.sub(known, "", escaped.replace(r"$\downarrow$", "").replace(r"$\uparrow$", ""))
    assert not set(rest) & set("\\&%$#_~^")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_it_compiles(tmp_path: Path) -> None:
    tables = [build(), build(("UC", HOSTILE), floor=True), build(regions=("all",))]
    body = "\n".join(latex_table(table) for table in tables)
    document = (
        f"\\documentclass[twocolumn]{{article}}\\usepackage{{graphicx}}\\begin{{document}}\n{body}\\end{{document}}"
    )
    (tmp_path / "table.tex").write_text(document, encoding="ascii")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "table.tex"],
        cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "table.pdf").stat().st_size > 1000
