"""The page on VOC shows what the archived measurements give."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.coco.__main__ import main

PAGE = Path(__file__).parents[2] / "docs" / "results" / "voc.md"


def test_the_page_shows_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(rows) > 50
    page = PAGE.read_text(encoding="utf-8").splitlines()
    assert [row for row in rows if row not in page] == []
