from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.multi_atlas.simulated import simulated_volumes
from segcal.fusion import joint_label_fusion_weights, plurality_vote, similarity_weights, weighted_vote
from segcal.fusion.folder import fuse_folder
from segcal.types import InputError
from support.commands import refuse, succeed_json

nibabel = pytest.importorskip("nibabel")

SHAPE = (9, 12, 10)
AFFINE = np.array([[0, -2.0, 0, 5], [1.5, 0, 0, -3], [0, 0, 3.0, 7], [0, 0, 0, 1]])
VOLUMES = simulated_volumes(4, SHAPE, deformation=1.0)
PROBABILITIES = np.random.default_rng(0).uniform(0.2, 1, (3, *SHAPE))


def save(path: Path, array: np.ndarray, affine: np.ndarray = AFFINE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(np.ascontiguousarray(array.T), affine), path)


def loaded(path: Path) -> np.ndarray:
    return np.asanyarray(nibabel.load(path).dataobj).T


@pytest.fixture
def atlases(tmp_path: Path) -> Path:
    """Three atlases and a target, some compressed and some not."""
    folder = tmp_path / "atlases"
    for k, volume in enumerate(VOLUMES[:3]):
        ending = "nii" if k == 1 else "nii.gz"
        save(folder / "labels" / f"a{k}.{ending}", volume.labels)
        save(folder / "images" / f"a{k}.{ending}", volume.image)
        save(folder / "probabilities" / f"a{k}.{ending}", PROBABILITIES[k])
    save(tmp_path / "target.nii.gz", VOLUMES[3].image)
    return folder


LABELS = np.stack([volume.labels for volume in VOLUMES[:3]]).astype(int)


@pytest.mark.parametrize("slab", [1, 1 << 30])
def test_slabs_give_what_the_whole_gives(
    atlases: Path, tmp_path: Path, slab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segcal.fusion.folder._BYTES", slab)
    written = fuse_folder(atlases, tmp_path / "out", patch=1, nonnegative=True)
    expected = weighted_vote(LABELS, joint_label_fusion_weights(PROBABILITIES, patch=1, nonnegative=True))
    assert written["weights"] == "probabilities"
    assert (loaded(tmp_path / "out" / "labels.nii.gz") == expected.labels).all()
    assert np.allclose(loaded(tmp_path / "out" / "probability.nii.gz"), expected.probability, atol=1e-6)
    assert np.allclose(loaded(tmp_path / "out" / "agreement.nii.gz"), expected.agreement, atol=1e-6)


@pytest.mark.parametrize("slab", [1, 1 << 30])
def test_weights_of_images(atlases: Path, tmp_path: Path, slab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segcal.fusion.folder._BYTES", slab)
    for path in (atlases / "probabilities").iterdir():
        path.unlink()
    (atlases / "probabilities").rmdir()
    fuse_folder(atlases, tmp_path / "out", target=tmp_path / "target.nii.gz")
    images = np.stack([volume.image for volume in VOLUMES[:3]])
    expected = weighted_vote(LABELS, similarity_weights(VOLUMES[3].image.astype(float), images))
    found = loaded(tmp_path / "out" / "probability.nii.gz")
    assert (loaded(tmp_path / "out" / "labels.nii.gz") == expected.labels).all()
    assert np.allclose(found, expected.probability, atol=1e-5)
    with pytest.raises(InputError, match="use the method plurality"):
        fuse_folder(atlases, tmp_path / "again")
    with pytest.raises(InputError, match="svwv weighs atlases by their probabilities"):
        fuse_folder(atlases, tmp_path / "again", "svwv")


def test_the_command_keeps_the_geometry(atlases: Path, tmp_path: Path) -> None:
    out = tmp_path / "fused"
    assert succeed_json("fuse", atlases, "--out", out, "--method", "plurality")["atlases"] == ["a0", "a1", "a2"]
    labels = nibabel.load(out / "labels.nii.gz")
    assert np.allclose(labels.affine, AFFINE)
    assert labels.get_data_dtype() == np.uint8
    assert (loaded(out / "labels.nii.gz") == plurality_vote(LABELS).labels).all()
    assert nibabel.load(out / "probability.nii.gz").get_data_dtype() == np.float32


LABEL = Path("labels", "a0.nii.gz")
WRONG: dict[str, Callable[[Path], Any]] = {
    "lie in different places": lambda root: save(
        root / "probabilities" / "a2.nii.gz", PROBABILITIES[2], AFFINE + np.eye(4) * 0.1
    ),
    "must have one shape": lambda root: save(root / LABEL, LABELS[0].astype(np.uint8)[1:]),
    "case 'a1' must have one probabilities file, got none": lambda root: (root / "probabilities" / "a1.nii").unlink(),
    "at least two atlases, got 1": lambda root: [(root / "labels" / name).unlink() for name in ("a1.nii", "a2.nii.gz")],
    "labels must be whole numbers": lambda root: save(root / LABEL, LABELS[0] + 0.4),
    "warped labels must be below 2^31, got more": lambda root: save(root / LABEL, np.full(SHAPE, 1e10)),
    "method must be one of jlf, svwv, plurality, majority": lambda root: "magic",
}


@pytest.mark.parametrize("sentence", WRONG)
def test_bad_input_is_one_sentence(atlases: Path, tmp_path: Path, sentence: str) -> None:
    method = "magic" if WRONG[sentence](atlases) == "magic" else "jlf"
    assert sentence in refuse("fuse", atlases, "--out", tmp_path / "out", "--method", method)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))
