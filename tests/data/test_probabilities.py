"""Probabilities instead of logits in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from segcal.data.folders.folder import open_folder
from support.scenes import (
    complaint,
    labels_of,
    logits_of,
    save,
    softmax,
    write_arrays,
)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("extension", [".npy", ".npz"])
def test_probabilities_become_logits(tmp_path: Path, dtype: Any, extension: str) -> None:
    probs = softmax(logits_of()).astype(dtype)
    save(tmp_path / f"logits/a{extension}", probs, key="probabilities")
    save(tmp_path / "labels/a.npy", labels_of())
    (tmp_path / "segcal.toml").write_text('scores = "probabilities"')
    folder = open_folder(tmp_path)
    assert folder.scores == "probabilities"
    logits = folder[0].logits
    assert isinstance(logits, torch.Tensor)
    torch.testing.assert_close(logits.softmax(0).double(), torch.from_numpy(probs).double(), rtol=2e-3, atol=1e-6)
    np.testing.assert_array_equal(logits.argmax(0), probs.argmax(0))


def test_certain_probabilities_stay_finite(tmp_path: Path) -> None:
    probs = np.zeros((5, 4, 6), np.float32)
    probs[2] = 1
    save(tmp_path / "logits/a.npy", probs)
    save(tmp_path / "labels/a.npy", labels_of())
    logits = open_folder(tmp_path, scores="probabilities")[0].logits
    assert torch.isfinite(torch.as_tensor(logits)).all()


def test_scores_that_are_no_probabilities(tmp_path: Path) -> None:
    write_arrays(tmp_path, "a")
    assert "probabilities must be in 0..1" in (message := complaint(tmp_path, scores="probabilities"))
    assert "of case 'a'; if these are logits, set scores" in message
    probs = softmax(logits_of())
    probs[:, 1, 2] *= 0.98
    save(tmp_path / "logits/a.npy", probs)
    message = complaint(tmp_path, scores="probabilities")
    assert "must sum to 1 over the classes, got 0.98 at (1, 2) of case 'a'" in message
    probs[3, 1, 2] = np.nan
    save(tmp_path / "logits/a.npy", probs)
    assert "got nan at (3, 1, 2) of case 'a'" in complaint(tmp_path, scores="probabilities")
    save(tmp_path / "logits/a.npy", np.ones((5, 4, 6), np.int64))
    assert "floating point, got int64 of case 'a'" in complaint(tmp_path, scores="probabilities")


def test_key_and_declared_scores_disagree(tmp_path: Path) -> None:
    save(tmp_path / "labels/a.npy", labels_of())
    save(tmp_path / "logits/a.npz", softmax(logits_of()), key="probabilities")
    assert "declared to be logits, got 'probabilities'; set scores = \"probabilities\"" in complaint(tmp_path)
    save(tmp_path / "logits/a.npz", logits_of(), key="logits")
    assert "declared to be probabilities, got 'logits'" in complaint(tmp_path, scores="probabilities")
    np.savez(tmp_path / "logits/a.npz", x=logits_of(), y=logits_of())
    assert "an array 'logits' or a single array, got ['x', 'y']" in complaint(tmp_path)
