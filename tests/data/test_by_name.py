"""Files in formats that are not read: each is named, with what to do about it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from segcal.data.folders.folder import open_folder
from segcal.types import InputError


@pytest.mark.parametrize(
    ("logits", "label", "message"),
    [
        ("a.npy", "a.jpg", r"'a\.jpg' is not read: JPEG changes values, so write labels as PNG"),
        ("a.npy", "a.JPEG", r"'a\.JPEG' is not read: JPEG changes values"),
        ("a.npy", "a.tif", r"'a\.tif' is not read: convert it to one of these formats"),
        ("a.npy", "a.pt", r"'a\.pt' is not read: it can run code .* np\.save\(path, tensor\.cpu\(\)\.numpy\(\)\)"),
        ("a.pt", "a.npy", r"got none; 'a\.pt' is not read: it can run code"),
        ("a.png", "a.npy", r"'a\.png' is not read: scores need a number for each class"),
        ("a.npy", "a_gt.npy", r"got none at .*did you mean 'a_gt\.npy'\? rename it"),
        ("a.npy", "gt-a.npy", r"did you mean 'gt-a\.npy'\? rename it"),
        ("a.npy", "a0.npy", r"did you mean 'a0\.npy'\? rename it"),
        ("scan_1.npy", "zzz_10.npy", "add it, or remove the case"),
        ("a.npy", "zzz.npy", "add it, or remove the case"),
        (".a.npy", "a.npy", r"is it the right folder\?"),
    ],
)
def test_each_file_has_its_own_remedy(tmp_path: Path, logits: str, label: str, message: str) -> None:
    for folder, name, shape in (("logits", logits, (2, 4, 5)), ("labels", label, (4, 5))):
        (tmp_path / folder).mkdir()
        with (tmp_path / folder / name).open("wb") as file:
            np.save(file, np.zeros(shape, np.float32 if folder == "logits" else np.uint8))
    with pytest.raises(InputError, match=message):
        open_folder(tmp_path)


@pytest.mark.parametrize("archived", [False, True])
def test_a_file_of_another_case_is_not_proposed(tmp_path: Path, archived: bool) -> None:
    """Scans are numbered, so every name is near; renaming the labels of scan 1 would give scan 2 the wrong truth."""
    (tmp_path / "labels").mkdir()
    if not archived:
        (tmp_path / "logits").mkdir()
    for name in ("scan_001", "scan_002"):
        scores = np.full((2, 3, 4, 5), 0.5, np.float32)
        if archived:
            np.savez(tmp_path / f"{name}.npz", probabilities=scores)
        else:
            np.save(tmp_path / "logits" / f"{name}.npy", scores)
    np.save(tmp_path / "labels" / "scan_001.npy", np.zeros((3, 4, 5), np.uint8))
    with pytest.raises(InputError, match=r"case 'scan_002' must have one label file, got none .*; add it, or remove"):
        open_folder(tmp_path)
