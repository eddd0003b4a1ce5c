from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from experiments.multi_atlas import presets
from experiments.multi_atlas.__main__ import main
from experiments.multi_atlas.presets import PRESETS, folds_of
from support.atlas_volumes import write_volumes

needs_medical = pytest.mark.skipif(
    not (importlib.util.find_spec("SimpleITK") and importlib.util.find_spec("nibabel")),
    reason="SimpleITK or nibabel is not installed",
)


def test_the_split_is_the_papers() -> None:
    names = [f"v{k:02d}" for k in range(40)]
    folds = folds_of(names, PRESETS["hippocampus"])
    assert len(folds) == 2
    for fold in folds:
        parts = (fold.atlases, fold.validation, fold.test)
        assert [len(fold.pairs(part)) for part in parts] == [272, 51, 340]
        assert not set(fold.atlases) & {*fold.validation, *fold.test}
        assert not set(fold.validation) & set(fold.test)
        for fit, test in fold.halves:
            assert len(fold.pairs(fit)) == len(fold.pairs(test)) == 170
            assert not set(fit) & set(test)
        assert {name for _, test in fold.halves for name in test} == set(fold.test)
    assert {*folds[0].test, *folds[1].test} == set(names)


@needs_medical
def test_from_images_to_tables(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    set_threads: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The whole experiment on four small simulated volumes, then once more, which must do nothing again."""
    set_threads(1)
    tiny = presets.Preset(
        "images",
        "labels",
        (2, 1, 2),
        1,
        registration=presets.RegistrationSettings(affine_iterations=3, iterations=(5, 3)),
        features=2,
        depth=1,
        epochs=1,
        batch_size=2,
        local_epochs=1,
        patch_size=8,
    )
    monkeypatch.setitem(PRESETS, "tiny", tiny)
    data, out = write_volumes(tmp_path / "data", 5, (12, 14, 12)), tmp_path / "out"
    arguments = ["run", "tiny", "--out", str(out), "--device", "cpu"]
    assert main([*arguments, "--data", str(data)]) == 0
    measures = pd.read_csv(out / "fold-0" / "measures.csv")
    assert measures.target.nunique() == 2
    assert set(measures.method) >= {"UC", "TS", "IBTS", "LTS", "CTS", "Best Fusion", "Best Calibration", "Plurality"}
    value = measures.set_index(["method", "region", "metric", "target"])["value"]
    for target in measures.target.unique():
        dice = {method: value[method, "all", "vd", target] for method in set(measures.method)}
        assert min(dice["Best Fusion"], dice["Best Calibration"]) > max(dice["UC"], dice["Plurality"])
        assert value["UC", "all", "rate", target] == 0
        assert value["Best Fusion", "all", "rate", target] > 0
        assert not value["Best Fusion", "all", "c->w", target] > 0
    text = (out / "tables.md").read_text()
    assert "## Table 1: calibration of VoteNet+, 4 pairs" in text
    assert "| paper: LTS | 0.98 | 75.96 |" in text
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.suffix in (".npz", ".npy", ".csv")}
    capsys.readouterr()
    assert main(arguments) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "trained already" in capsys.readouterr().out
    assert main([*arguments, "--epochs", "7"]) == 2
    assert "was begun with epochs=1" in capsys.readouterr().err


def test_what_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "hippocampus", "--out", str(tmp_path / "out")]) == 2
    assert "run the stage `prepare` first" in capsys.readouterr().err
    assert main(["prepare", "hippocampus", "--out", str(tmp_path / "out")]) == 2
    assert "--data" in capsys.readouterr().err
