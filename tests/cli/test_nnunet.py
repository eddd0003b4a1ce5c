"""segcal nnunet without nnU-Net: fitting on folds, and what is refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import torch

from support.commands import refuse, succeed_json


def test_fit_on_folds_and_the_missing_package(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    model = tmp_path / "model"
    (model / "fold_0" / "validation").mkdir(parents=True)
    (tmp_path / "labels").mkdir()
    for name in ("a", "b"):
        probs = torch.from_numpy(3 * random.normal(size=(2, 4, 5, 6))).float().softmax(0).numpy()
        np.savez(model / "fold_0" / "validation" / f"{name}.npz", probabilities=probs)
        np.save(tmp_path / "labels" / f"{name}.npy", random.integers(0, 2, (4, 5, 6)))
    (model / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "one": 1}}))
    arguments = ("nnunet", "fit", model, "--labels", tmp_path / "labels", "--out", tmp_path / "ts")
    assert succeed_json(*arguments, "--method", "ts")["cases"] == 2
    assert "no such option: --logits-only" in refuse(*arguments, "--logits-only")  # it would change nothing
    assert "fold_*/validation" in refuse("nnunet", "fit", tmp_path / "labels", "--out", tmp_path / "none")
    if importlib.util.find_spec("nnunetv2") is not None:
        return
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "c_0000.nii.gz").touch()
    predicting = ("nnunet", "predict", tmp_path / "ts", tmp_path / "images", "--model", model)
    assert "device 'nowhere' cannot be used" in refuse(*predicting, "--out", tmp_path / "out", "--device", "nowhere")
    assert "is not a trained nnU-Net" in refuse(*predicting, "--out", tmp_path / "out")
    (model / "plans.json").write_text("{}")
    assert "pip install segcal[nnunet]" in refuse(*predicting, "--out", tmp_path / "out")
    (model / "dataset.json").write_text(json.dumps({"channel_names": {"0": "T1", "1": "T2"}}))
    assert "channel 1 of 'c' is missing; add 'c_0001.nii.gz'" in refuse(*predicting, "--out", tmp_path / "out")
    (tmp_path / "images" / "c_0000.nii.gz").rename(tmp_path / "images" / "c.nii.gz")
    assert "must be named NAME_0000.nii.gz, got 'c.nii.gz'" in refuse(*predicting, "--out", tmp_path / "out")
    assert "does not exist" in refuse(*predicting[:3], tmp_path / "none", *predicting[4:], "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
