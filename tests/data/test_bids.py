"""Names of the Brain Imaging Data Structure, folders of subjects, and derivatives as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from segcal.data.folders.folder import open_folder
from segcal.text import CalibrationWarning
from support.scenes import complaint, labels_of, logits_of, save, softmax

SESSIONS = ("sub-01/ses-1", "sub-01/ses-2", "sub-02/ses-1")


def stem(session: str) -> str:
    return session.replace("/", "_")


def write_tree(root: Path, kind: str, suffix: str) -> None:
    for seed, session in enumerate(SESSIONS):
        values = softmax(logits_of(3, seed=seed)) if kind == "scores" else labels_of(3, seed=seed)
        save(root / session / "anat" / f"{stem(session)}_{suffix}.nii.gz", values)


def test_derivatives_are_read_as_they_are(tmp_path: Path) -> None:
    write_tree(tmp_path, "scores", "desc-unet_probseg")
    write_tree(tmp_path, "labels", "desc-manual_dseg")
    (tmp_path / "dataset_description.json").write_text("{}")
    folder = open_folder(tmp_path)
    assert folder.names == tuple(f"{stem(session)}_desc-unet_probseg" for session in SESSIONS)
    assert (folder.scores, folder.num_classes, folder.spatial_dims) == ("probabilities", 5, 3)
    for seed, case in enumerate(folder):
        np.testing.assert_array_equal(case.labels, labels_of(3, seed=seed))
        np.testing.assert_allclose(softmax(np.asarray(case.logits)), softmax(logits_of(3, seed=seed)), atol=1e-6)
    assert [case.group for case in folder] == ["sub-01", "sub-01", "sub-02"]


def test_labels_of_another_tree(tmp_path: Path) -> None:
    write_tree(tmp_path / "predictions", "scores", "probseg")
    write_tree(tmp_path / "truth", "labels", "space-T1w_dseg")
    assert "case 'sub-01_ses-1_probseg' must have one label file" in complaint(
        tmp_path / "predictions", labels=tmp_path / "truth"
    )
    write_tree(tmp_path / "plain", "labels", "dseg")
    folder = open_folder(tmp_path / "predictions", labels=tmp_path / "plain")
    np.testing.assert_array_equal(folder[2].labels, labels_of(3, seed=2))
    assert open_folder(tmp_path / "predictions", num_classes=5, require_labels=False)[0].labels is None


def test_own_layout_with_folders_of_subjects(tmp_path: Path) -> None:
    for seed, session in enumerate(SESSIONS):
        save(tmp_path / "logits" / session / f"{stem(session)}_T1w.npy", logits_of(seed=seed))
        save(tmp_path / "labels" / f"{stem(session)}_dseg.png", labels_of(seed=seed))
    save(tmp_path / "labels" / "sub-03_dseg.png", labels_of())
    with pytest.warns(CalibrationWarning, match=r"1 label file \('sub-03_dseg'\)"):
        folder = open_folder(tmp_path)
    assert folder.names == tuple(f"{stem(session)}_T1w" for session in SESSIONS)
    np.testing.assert_array_equal(folder[1].labels, labels_of(seed=1))
    (tmp_path / "segcal.toml").write_text("group = '^(sub-01_ses-1)'")
    with pytest.warns(CalibrationWarning):
        assert [case.group for case in open_folder(tmp_path)] == ["sub-01_ses-1", None, None]


def test_two_segmentations_of_a_case_are_refused(tmp_path: Path) -> None:
    write_tree(tmp_path, "scores", "probseg")
    write_tree(tmp_path, "labels", "desc-first_dseg")
    write_tree(tmp_path, "labels", "desc-second_dseg")
    assert "must have one label file, got" in complaint(tmp_path)


def test_other_names_stay_apart(tmp_path: Path) -> None:
    """A name without entities matches nothing but itself."""
    for name in ("scan_1", "scan_2"):
        save(tmp_path / "logits" / f"{name}.npy", logits_of())
        save(tmp_path / "labels" / f"{name}.npy", labels_of())
    assert [case.group for case in open_folder(tmp_path)] == [None, None]
    (tmp_path / "labels" / "scan_2.npy").rename(tmp_path / "labels" / "scan_2_dseg.npy")
    assert "case 'scan_2' must have one label file" in complaint(tmp_path)
