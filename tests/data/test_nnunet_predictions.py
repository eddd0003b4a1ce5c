"""Folders of predictions by nnU-Net."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from segcal.data.folders.folder import open_folder, write_map, write_scores
from segcal.data.io import formats
from support.scenes import (
    AFFINE,
    complaint,
    labels_of,
    logits_of,
    save,
    softmax,
    write_nnunet_predictions,
)


def test_nnunet_folder(tmp_path: Path) -> None:
    probs, truth = write_nnunet_predictions(tmp_path)
    folder = open_folder(tmp_path / "pred", labels=tmp_path / "truth")
    assert (folder.names, folder.scores, folder.num_classes, folder.spatial_dims) == (
        ("case_1",),
        "probabilities",
        5,
        3,
    )
    case = folder[0]
    torch.testing.assert_close(torch.as_tensor(case.logits).softmax(0), torch.from_numpy(probs))
    np.testing.assert_array_equal(case.labels, truth)
    assert (truth != probs.argmax(0)).any()  # so the prediction was not taken for the truth
    assert case.spacing == (4.0, 3.0, 2.0)
    (tmp_path / "truth").rename(tmp_path / "pred/labels")
    np.testing.assert_array_equal(open_folder(tmp_path / "pred")[0].labels, truth)


def test_nnunet_predictions_are_never_the_truth(tmp_path: Path) -> None:
    write_nnunet_predictions(tmp_path)
    assert f"got none in '{tmp_path}/pred/labels'; give their folder with --labels" in complaint(tmp_path / "pred")
    assert "nnU-Net wrote its own predictions" in complaint(tmp_path / "pred", labels=tmp_path / "pred")
    assert "declared to be logits, got 'probabilities'" in complaint(
        tmp_path / "pred", labels=tmp_path / "truth", scores="logits"
    )


def test_nnunet_there_and_back(tmp_path: Path) -> None:
    probs, truth = write_nnunet_predictions(tmp_path)
    folder = open_folder(tmp_path / "pred", labels=tmp_path / "truth")
    path = write_scores(tmp_path / "out", "case_1", probs[::-1], folder)
    assert path == tmp_path / "out/case_1.npz"
    with np.load(path) as archive:
        assert archive.files == ["probabilities"]
        np.testing.assert_array_equal(archive["probabilities"], probs[::-1])
    temperature = np.arange(truth.size, dtype=np.float32).reshape(truth.shape)
    written = nibabel.load(write_map(tmp_path / "maps", "case_1", temperature, folder))
    assert written.get_filename() == str(tmp_path / "maps/case_1.nii.gz")
    np.testing.assert_array_equal(written.get_fdata(), temperature.T)
    np.testing.assert_array_equal(written.affine, AFFINE)


@pytest.mark.parametrize("labelled", [True, False])
def test_flat_nnunet_predictions(tmp_path: Path, labelled: bool) -> None:
    probs = softmax(logits_of(2))
    save(tmp_path / "a.npz", probs[:, None], key="probabilities")
    save(tmp_path / ("labels/a.png" if labelled else "a.png"), labels_of(2))
    folder = open_folder(tmp_path, require_labels=labelled)
    assert (folder.spatial_dims, folder.num_classes) == (2, 5)
    assert tuple(folder[0].logits.shape) == (5, 4, 6)
    assert (folder[0].labels is not None) == labelled
    with np.load(write_scores(tmp_path / "out", "a", probs, folder)) as archive:
        np.testing.assert_array_equal(archive["probabilities"], probs[:, None])
    assert write_map(tmp_path / "out", "a", probs[0], folder) == tmp_path / "out/a.npy"


def test_nnunet_without_labels_has_the_geometry_of_its_prediction(tmp_path: Path) -> None:
    probs, truth = write_nnunet_predictions(tmp_path)
    folder = open_folder(tmp_path / "pred", require_labels=False)
    case = folder[0]
    assert (folder.spatial_dims, case.labels, case.spacing) == (3, None, (4.0, 3.0, 2.0))
    torch.testing.assert_close(torch.as_tensor(case.logits).softmax(0), torch.from_numpy(probs))
    written = nibabel.load(write_map(tmp_path / "maps", "case_1", np.ones(truth.shape, np.float32), folder))
    np.testing.assert_array_equal(written.affine, AFFINE)
    (tmp_path / "pred/case_1.nii.gz").unlink()
    folder = open_folder(tmp_path / "pred", require_labels=False)
    assert folder.spatial_dims == 3
    assert write_map(tmp_path / "maps", "case_1", np.ones(truth.shape), folder).suffix == ".npy"


def test_extensions_are_told_by_the_longest() -> None:
    assert formats.extension_of(Path("a.nii.gz"), formats.SCORES) == ".nii.gz"
    assert formats.extension_of(Path("a.gz"), formats.SCORES) is None
