"""Data folders and a calibrator that the tests of several commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from segcal.data.folders.writer import write_folder
from support.commands import succeed
from support.scenes import simulated


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three cases, of which one is to fit and two are to test."""
    cases = simulated(3, num_classes=3, size=(16, 14), contrast=2.0)
    write_folder(tmp_path / "data", {"fit": cases[:1], "test": cases[:0:-1]})
    return tmp_path / "data"


@pytest.fixture
def calibrator(data: Path) -> Path:
    succeed("fit", data, "--method", "ts", "--out", data.parent / "ts")
    return data.parent / "ts"


@pytest.fixture
def learned(tmp_path: Path) -> Path:
    """Five cases with images, of which three are to fit, one is to choose the weights on and one is to test."""
    cases = simulated(5, num_classes=3, size=(12, 14), contrast=2.0)
    write_folder(tmp_path / "data", {"fit": cases[:3], "validation": cases[3:4], "test": cases[4:]})
    return tmp_path / "data"
