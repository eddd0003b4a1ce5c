"""Readers of medical data sets, on small trees in their layouts and on the real data where it is present."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from experiments.datasets.hippocampus import open_hippocampus
from experiments.datasets.lpba40 import CLASSES, STRUCTURES, SUBJECTS, open_lpba40
from experiments.datasets.mouse_brain import open_mouse_brain
from experiments.datasets.volumes import VolumeFolder, classes_of
from segcal.types import Array, InputError

nibabel = pytest.importorskip("nibabel")
REAL = Path(__file__).parents[3] / "shared" / "data"
SHAPE = (4, 5, 6)


def save(path: Path, values: Array, *, zooms: tuple[float, ...] = (1.0, 2.0, 3.0), analyze: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = nibabel.AnalyzeImage if analyze else nibabel.Nifti1Image
    image = kind(values, np.diag([*zooms, 1.0]))
    nibabel.save(image, path)


def write_pairs(root: Path, labels: Array, *, folders: tuple[str, str] = ("images", "labels")) -> Path:
    random = np.random.default_rng(0)
    save(root / folders[0] / "a.nii.gz", random.normal(size=SHAPE).astype(np.float32))
    save(root / folders[1] / "a.nii.gz", labels)
    return root


def test_hippocampus_reads_mixed_types(tmp_path: Path) -> None:
    labels = np.random.default_rng(1).integers(0, 3, SHAPE)
    root = write_pairs(tmp_path, labels.astype(np.float32), folders=("imagesTr", "labelsTr"))
    save(root / "imagesTr" / "b.nii.gz", np.full(SHAPE, 7, np.uint8))
    save(root / "labelsTr" / "b.nii.gz", np.zeros(SHAPE, np.uint8))
    (root / "imagesTr" / "._a.nii.gz").write_bytes(b"left by macOS")
    folder = open_hippocampus(root)
    assert folder.names == ("a", "b")
    volume = folder.read("a")
    assert volume.labels.dtype == np.uint8
    np.testing.assert_array_equal(volume.labels, labels.T)
    assert volume.spacing == (3.0, 2.0, 1.0)
    assert folder.read("b").image.max() == 7


def test_a_fourth_axis_of_one_is_dropped(tmp_path: Path) -> None:
    root = write_pairs(tmp_path, np.zeros(SHAPE, np.int16), folders=("imagesTr", "labelsTr"))
    save(root / "imagesTr" / "a.nii.gz", np.ones((*SHAPE, 1), np.int16))
    save(root / "labelsTr" / "a.nii.gz", np.full((*SHAPE, 1), 2, np.int16))
    volume = open_hippocampus(root).read("a")
    assert volume.image.shape == volume.labels.shape == SHAPE[::-1]
    assert (volume.labels == 2).all()


def test_mouse_structures_are_named_by_side(tmp_path: Path) -> None:
    labels = np.zeros(SHAPE, np.float32)
    labels[0, 0, :4] = (1, 2, 21, 40)
    root = write_pairs(tmp_path, labels)
    rows = ["Label,Structure", *(f"{k},Structure {k}" for k in range(1, 21)), "After separation,", "1~20,Right"]
    (root / "structures.csv").write_text("\n".join(rows))
    folder = open_mouse_brain(root)
    assert len(folder.classes) == 38
    found = folder.read("a").labels[:4, 0, 0]
    assert [folder.classes[k] for k in found] == [
        *("Structure 1, right", "Structure 2", "Structure 1, left", "Structure 20, left")
    ]


def write_lpba40(root: Path, subjects: tuple[str, ...]) -> None:
    """Write a few voxels in LPBA40's layout: Analyze pairs with a fourth axis of one, and a stray label."""
    for subject in subjects:
        labels = np.zeros((*SHAPE, 1), np.uint8)
        labels[1:3, 1, 1, 0] = (21, 182)
        labels[3, 3, 3, 0] = 77
        image = np.full((*SHAPE, 1), 9, np.int16)
        save(root / subject / f"{subject}.delineation.skullstripped.img", image, analyze=True)
        save(root / subject / f"{subject}.delineation.structure.label.img", labels, analyze=True)


def test_lpba40_keeps_56_structures_and_drops_stray_labels(tmp_path: Path) -> None:
    assert len(STRUCTURES) == 56
    assert len(CLASSES) == len(set(CLASSES)) == 57
    assert SUBJECTS[0] == "S01"
    assert SUBJECTS[-1] == "S40"
    write_lpba40(tmp_path / "LPBA40" / "delineation_space", SUBJECTS[:2])
    folder = open_lpba40(tmp_path, subjects=SUBJECTS[:2])
    volume = folder.read("S02")
    assert sorted(np.unique(volume.labels).tolist()) == [0, 1, 56]
    assert (volume.labels == 1).sum() == 1
    (tmp_path / "LPBA40" / "delineation_space" / "S03").mkdir()
    with pytest.raises(InputError, match=r"must hold S03\.delineation"):
        open_lpba40(tmp_path, subjects=SUBJECTS[:3])


@pytest.mark.parametrize("opened", [open_hippocampus, open_mouse_brain, open_lpba40])
def test_an_empty_folder_is_refused_with_advice(opened: Callable[[Path], VolumeFolder], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is missing|must hold"):
        opened(tmp_path)


def test_images_without_labels_and_other_shapes_are_refused(tmp_path: Path) -> None:
    root = write_pairs(tmp_path, np.zeros(SHAPE, np.uint8), folders=("imagesTr", "labelsTr"))
    save(root / "imagesTr" / "b.nii.gz", np.zeros(SHAPE, np.uint8))
    with pytest.raises(InputError, match="must hold the labels of 'b'"):
        open_hippocampus(root)
    save(root / "labelsTr" / "b.nii.gz", np.zeros((4, 5, 7), np.uint8))
    with pytest.raises(InputError, match=r"must have the shape of its image, \(6, 5, 4\)"):
        open_hippocampus(root).read("b")


def test_classes_follow_the_listed_values() -> None:
    with pytest.raises(InputError, match=r"must be among 0\.\.2, got 3"):
        classes_of(np.array([0, 3]), range(3))
    with pytest.raises(InputError, match="fractions"):
        classes_of(np.array([0.5]), range(3), stray=True)
    assert classes_of(np.array([5, 0, 9]), (0, 9), stray=True).tolist() == [0, 0, 1]


@pytest.mark.data
@pytest.mark.parametrize(
    ("opened", "name", "count", "classes"),
    [
        (open_hippocampus, "hippocampus", 200, 3),
        (open_mouse_brain, "mouse_brain", 17, 38),
    ],
)
def test_real_volumes_are_read(opened: Callable[[Path], VolumeFolder], name: str, count: int, classes: int) -> None:
    if not (REAL / name).is_dir():
        pytest.skip(f"needs the data set {name} in {REAL}")
    folder = opened(REAL / name)
    assert (len(folder.names), len(folder.classes)) == (count, classes)
    volume = folder.read(folder.names[1])
    assert volume.image.shape == volume.labels.shape
    assert len(np.unique(volume.labels)) == classes
