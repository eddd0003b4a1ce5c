"""The experiment with nnU-Net, whose own commands are replaced by ones that write what it would."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.nnunet import __main__ as command
from experiments.passes import table
from experiments.passes.sets import FOLD_ROWS
from experiments.rows import pack_rows, unpack_rows
from segcal.files import write_json
from support.commands import succeed
from support.fits import choose_among_few

nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed")

SHAPE = (6, 7, 8)
ABOUT = {"labels": {"background": 0, "anterior": 1, "posterior": 2}, "file_ending": ".nii.gz"}


def save(path: Path, labels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(labels.T.astype(np.uint8), np.eye(4)), path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder of twelve volumes whose images are their labels."""
    random = np.random.default_rng(0)
    for number in range(12):
        labels = np.kron(random.integers(0, 3, (2, 2, 2)), np.ones((3, 4, 4)))[: SHAPE[0], : SHAPE[1], : SHAPE[2]]
        for folder in ("imagesTr", "labelsTr"):
            save(tmp_path / "data" / folder / f"h{number:02}.nii.gz", labels)
    return tmp_path / "data"


class NnUNet:
    """nnU-Net as `subprocess.run` starts it: each fold sees every image through its own noise."""

    def __init__(self) -> None:
        self.called = list[str]()

    def __call__(self, words: list[Any], *, env: dict[str, str], **_: Any) -> None:
        program = Path(words[0]).name
        given = dict(pairwise(words))
        self.called.append(program)
        model = Path(env["nnUNet_results"]) / "Dataset004_Hippocampus" / "nnUNetTrainerShort__nnUNetPlans__2d"
        raw = Path(env["nnUNet_raw"]) / "Dataset004_Hippocampus"
        if program == "nnUNetv2_plan_and_preprocess":
            plans = Path(env["nnUNet_preprocessed"]) / "Dataset004_Hippocampus" / "nnUNetPlans.json"
            plans.parent.mkdir(parents=True)
            write_json(plans, {"configurations": {"2d": {"batch_size": 28}}})
        elif program == "nnUNetv2_train":
            fold = int(words[3])
            (model / f"fold_{fold}").mkdir(parents=True, exist_ok=True)
            for name in ("dataset.json", "plans.json"):
                write_json(model / name, ABOUT)
            (model / f"fold_{fold}" / "checkpoint_final.pth").touch()
            if "--val" in words:
                own = sorted((raw / "imagesTr").glob("*.nii.gz"))[2 * fold : 2 * fold + 2]
                self.predict(own, model / f"fold_{fold}" / "validation", [fold])
        elif program == "nnUNetv2_predict":
            folds = [int(word) for word in words[words.index("-f") + 1 : words.index("--save_probabilities")]]
            self.predict(sorted(Path(given["-i"]).glob("*.nii.gz")), Path(given["-o"]), folds)
        elif words[1:3] == ["nnunet", "predict"]:
            folds = [0] if "--folds" in words else [0, 1]
            self.predict(sorted(Path(words[4]).glob("*.nii.gz")), Path(given["--out"]), folds)
        else:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("nnUNet_raw", env["nnUNet_raw"])
                succeed(*words[1:])

    def predict(self, images: list[Path], out: Path, folds: list[int]) -> None:
        out.mkdir(parents=True, exist_ok=True)
        for path in images:
            image = np.asarray(nibabel.load(path).dataobj).T
            name = path.name.removesuffix("_0000.nii.gz")
            logits = np.mean([self.logits(image, name, fold) for fold in folds], axis=0)
            probs = np.exp(logits) / np.exp(logits).sum(axis=0)
            np.savez_compressed(out / f"{name}.npz", probabilities=probs.astype(np.float32))
            save(out / f"{name}.nii.gz", probs.argmax(axis=0))
        write_json(out / "dataset.json", ABOUT)

    @staticmethod
    def logits(image: np.ndarray, name: str, fold: int) -> np.ndarray:
        random = np.random.default_rng([fold, int(name[1:])])
        return 3.0 * (image == np.arange(3)[:, None, None, None]) + 2 * random.normal(size=(3, *SHAPE))


def test_folds_and_their_mean_are_calibrated_deployed_and_archived(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_among_few(monkeypatch)
    monkeypatch.setattr(command.subprocess, "run", nnunet := NnUNet())
    out = tmp_path / "out"
    arguments = ["run", "--data", str(data), "--out", str(out), "--sizes", "4", "4", "4", "--folds", "2"]
    assert command.main(arguments) == 0
    rows = pd.read_csv(out / "rows.csv.gz")
    found = {part: set(own["method"]) for part, own in rows.groupby("part")}
    assert found == {"nnunet": {"UC", "TS", "CTS", *FOLD_ROWS}, "nnunet-fold-0": {"UC", "TS", "CTS"}}
    assert set(rows["changed"]) == {0}
    images = rows.groupby(["part", "method"])["images"].first()
    assert images["nnunet", "TS"] == images["nnunet", "TS of single folds"] == 4
    assert set(rows["case"]) == {path.name.removesuffix(".nii.gz") for path in (out / "raw").rglob("labelsTs/*")}
    before = len(nnunet.called)
    assert command.main(arguments) == 0
    done_again = nnunet.called[before:]
    assert done_again == [], "what is there is not done again"
    monkeypatch.setattr(command, "MEASURED", kept := tmp_path / "kept.csv.xz")
    other = rows[rows["part"] == "nnunet"].assign(part="hippocampus-200")
    pack_rows(other, kept, table.COLUMNS)
    assert command.main(["archive", "--out", str(out)]) == 0
    text = table.tables(unpack_rows(kept))
    assert "| POOL folds | folds |" in text
    assert "## Hippocampus, 200 volumes" in text
