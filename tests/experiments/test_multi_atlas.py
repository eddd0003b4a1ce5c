from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import save_file
from torch import Tensor

from experiments.datasets.lpba40 import SUBJECTS
from experiments.multi_atlas.__main__ import main
from experiments.multi_atlas.calibrating import METHODS
from experiments.multi_atlas.fusing import BASELINES, BOUNDS
from experiments.multi_atlas.learning import LOG, WEIGHTS, fold_folder, predict, read_logits
from experiments.multi_atlas.presets import PRESETS, Fold, Preset, folds_of, small
from experiments.multi_atlas.simulated import simulated_volumes
from experiments.multi_atlas.volumes import label_set, prepared_folds
from experiments.multi_atlas.votenet import VoteNet
from segcal.calibrators import load
from support.atlas_volumes import write_lpba40, write_volumes

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
def test_from_lpba40_to_tables(
    tmp_path: Path, set_threads: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole experiment on five small volumes in LPBA40's layout, then once more, which must do nothing again."""
    set_threads(1)
    data, out = write_lpba40(tmp_path / "data", SUBJECTS[:5]), tmp_path / "out"
    arguments = ["run", "lpba40", "--small", "--out", str(out), "--device", "cpu"]
    assert main([*arguments, "--data", str(data), "--template", str(data / "template.nii.gz")]) == 0
    measures = pd.read_csv(out / "fold-0" / "measures.csv")
    assert measures.target.nunique() == 2
    assert set(measures.method) == {"UC", *METHODS.values(), *BOUNDS, *BASELINES}
    assert load(out / "fold-0" / "half-0" / "lts-paper").preset == "paper"
    assert load(out / "fold-0" / "half-0" / "lts").preset == "default"
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
    assert main([argument for argument in arguments if argument != "--small"]) == 2
    assert "was begun with sizes=[2, 1, 2]" in capsys.readouterr().err


@needs_medical
def test_folders_of_nifti_files_are_prepared(tmp_path: Path) -> None:
    data, out = write_volumes(tmp_path / "data", 6, (12, 14, 12)), tmp_path / "out"
    (data / "structures.csv").write_text("".join(f"{k},Structure {k}\n" for k in range(1, 21)))
    assert main(["prepare", "mouse_brain", "--small", "--data", str(data), "--out", str(out)]) == 0
    preset = small(PRESETS["mouse_brain"])
    (fold,) = prepared_folds(out, preset)
    names = {*fold.atlases, *fold.validation, *fold.test}
    assert names == {f"subject{k:02d}" for k in range(5)}
    assert label_set(out) == [1, 2, 3]


def test_lpba40_follows_the_paper() -> None:
    preset = PRESETS["lpba40"]
    assert (preset.patch, preset.centre, preset.epochs, preset.patch_size) == (72, 40, 500, 72)
    assert (preset.sizes, preset.folds, preset.paper_epochs) == ((17, 3, 20), 2, 100)


def test_a_volume_is_predicted_in_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network sees patches only, and every voxel gets the logit of the patch whose centre it is in."""
    preset = replace(small(PRESETS["lpba40"]), patch=10, centre=6)
    fold = Fold(0, ("a",), ("t",), ())
    volume = simulated_volumes(1, (14, 12, 9))[0]
    seen = []

    def network(_: VoteNet, target: Tensor, atlas: Tensor) -> Tensor:
        seen.append(tuple(target.shape[2:]))
        return target - atlas

    write_trained(tmp_path, fold, preset)
    monkeypatch.setattr("experiments.multi_atlas.learning.reader", lambda _: lambda _: volume)
    warp = SimpleNamespace(image=volume.image / 2)
    monkeypatch.setattr("experiments.multi_atlas.learning.read_warps", lambda *_: [warp])
    monkeypatch.setattr(VoteNet, "forward", network)
    predict(tmp_path, fold, preset, device="cpu")
    assert set(seen) == {(10, 10, 9)}
    np.testing.assert_allclose(read_logits(tmp_path, fold, "t")[0], volume.image / 2, atol=1e-3)


def write_trained(out: Path, fold: Fold, preset: Preset) -> None:
    folder = fold_folder(out, fold)
    folder.mkdir()
    save_file(VoteNet(preset.features, preset.depth).state_dict(), folder / WEIGHTS)
    (folder / LOG).write_text("{}")


def test_what_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "hippocampus", "--out", str(tmp_path / "out")]) == 2
    assert "run the stage `prepare` first" in capsys.readouterr().err
    assert main(["prepare", "hippocampus", "--out", str(tmp_path / "out")]) == 2
    assert "--data" in capsys.readouterr().err
    assert main(["prepare", "lpba40", "--data", str(tmp_path), "--out", str(tmp_path / "other")]) == 2
    assert "--template is needed for lpba40" in capsys.readouterr().err
