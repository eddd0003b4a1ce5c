"""Warnings in the commands: one line on standard error each, never a traceback, and results all the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from segcal.data.folders.writer import write_folder
from support.commands import done
from support.scenes import simulated

PROBABILITIES = "warning: the logits look like probabilities"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Probabilities in a folder that should hold logits."""
    folder = tmp_path_factory.mktemp("warnings") / "data"
    cases = simulated(3, num_classes=3, size=(16, 14), contrast=2.0)
    probs = [replace(case, logits=torch.as_tensor(case.logits).softmax(0).numpy()) for case in cases]
    write_folder(folder, {"fit": probs[:1], "test": probs[1:]})
    return folder


def test_probabilities_are_warned_of_once_in_a_command(data: Path, tmp_path: Path) -> None:
    fitted = done("fit", data, "--method", "ts", "--out", tmp_path / "ts", "--json")
    assert fitted.stderr.replace("\n", " ").count(PROBABILITIES) == 1
    assert json.loads(fitted.stdout)
    measured = done("evaluate", data, "--calibrators", tmp_path / "ts", "--split", "fit", "--json")
    shown = " ".join(measured.stderr.split())
    assert shown.count(PROBABILITIES) == 1
    assert shown.count("TS was fitted on this case") == 1
    assert "Traceback" not in shown
    assert "UserWarning" not in shown


def test_declared_probabilities_are_fine(data: Path) -> None:
    assert "look like" not in done("diagnose", data, "--scores", "probabilities").stderr
