"""Data folders, a calibrator and results that the tests of several commands share: made once, and copied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from segcal.data.folders.writer import write_folder
from support.commands import succeed
from support.scenes import simulated


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything below, which no test may alter."""
    root = tmp_path_factory.mktemp("made")
    cases = simulated(3, num_classes=3, size=(16, 14), contrast=2.0)
    write_folder(root / "data", {"fit": cases[:1], "test": cases[:0:-1]})
    succeed("fit", root / "data", "--method", "ts", "--out", root / "ts")
    options = ("--calibrators", root / "ts", "--floor", "--patch-size", 6, "--patches", 3, "--patch-sizes", 4, 6)
    page = root / "page.html"
    shown = succeed("evaluate", root / "data", *options, "--out", root / "results", "--page", page)
    assert f"shown in {page}" in shown.replace("\n", "")
    return root


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    """Three cases, of which one is to fit and two are to test."""
    return Path(shutil.copytree(made / "data", tmp_path / "data"))


@pytest.fixture
def calibrator(made: Path, data: Path) -> Path:
    """Temperature scaling of the case to fit, beside the data."""
    return Path(shutil.copytree(made / "ts", data.parent / "ts"))


@pytest.fixture
def learned(tmp_path: Path) -> Path:
    """Five cases with images, of which three are to fit, one is to choose the weights on and one is to test."""
    cases = simulated(5, num_classes=3, size=(12, 14), contrast=2.0)
    write_folder(tmp_path / "data", {"fit": cases[:3], "validation": cases[3:4], "test": cases[4:]})
    return tmp_path / "data"
