"""The README's table of real data is the one that the archived measurements give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.headline import headline
from experiments.pages import FOLDER

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def table() -> str:
    return headline()


def test_the_readme_shows_what_was_measured(table: str) -> None:
    assert table in README.read_text(encoding="utf-8")


def test_the_readme_says_where_ece_does_not_follow(table: str) -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    ece = [[float(row[column].split(" / ")[1]) for column in (2, 4)] for row in rows]
    higher = sum(auto > ts for ts, auto in ece)
    text = " ".join(README.read_text(encoding="utf-8").split())
    assert f"in {higher} of the {len(rows)} rows `auto` has a higher ECE than TS" in text


def test_the_gain_of_passes_in_the_readme_is_that_of_the_page() -> None:
    page = (FOLDER / "passes.md").read_text(encoding="utf-8").partition("| NLL, All")[2]
    text = " ".join(README.read_text(encoding="utf-8").split())
    scenes = gains("mirror, scales, both", page)
    assert f"by {min(scenes):.0f} to {max(scenes):.0f} % on CamVid with five mirrored and rescaled passes" in text
    (mouse,) = gains("mirror", page.partition("| Mouse brain, 37 structures |")[2])
    assert f"by {mouse:.0f} % on the mouse brains with one mirrored pass" in text
    (volumes,) = gains("other networks", page.partition("| Hippocampus, 200 volumes |")[2])
    assert f"by {volumes:.0f} % on the hippocampus with another network" in text


def gains(name: str, page: str) -> list[float]:
    """Return by how many percent the first table of a page says that a set of passes lowers the NLL."""
    row = re.search(rf"(?m)^\| POOL {name} \| [^|]+ \| (.*) \|$", page)
    assert row is not None
    return [-float(cell.split()[0]) for cell in row[1].split(" | ")]
