"""The README's table of real data is the one that the archived measurements give."""

from __future__ import annotations

from pathlib import Path

from experiments.headline import headline

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_shows_what_was_measured() -> None:
    assert headline() in README.read_text(encoding="utf-8")
