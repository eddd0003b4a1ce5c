"""NIfTI: the class axis, affines and spacings, there and back."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from segcal.data.folders.folder import open_folder, write_map, write_scores
from segcal.types import InputError
from support.scenes import (
    AFFINE,
    complaint,
    labels_of,
    logits_of,
    read_all,
    save,
    write_nifti_case,
)


@pytest.mark.parametrize("layout", ["first", "last", "vector"])
def test_nifti_voxel_by_hand(tmp_path: Path, layout: str) -> None:
    write_nifti_case(tmp_path, layout)
    folder = open_folder(tmp_path)
    case = folder[0]
    assert (folder.num_classes, folder.spatial_dims) == (2, 3)
    assert case.logits.shape == (2, 3, 4, 6)
    assert case.logits[1, 2, 3, 5] == 1532  # class 1, z 2, y 3, x 5
    assert case.logits[0, 1, 0, 4] == 401
    assert np.argwhere(case.labels).tolist() == [[1, 2, 5]]
    assert case.spacing == (4.0, 3.0, 2.0)


def test_class_axis_first_where_both_fit(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(3, 3, 3, 3)).astype(np.float32)
    for where, array in (("logits", values), ("labels", np.zeros((3, 3, 3), np.uint8))):
        (tmp_path / where).mkdir()
        nibabel.save(nibabel.Nifti1Image(array, AFFINE), tmp_path / where / "a.nii")
    logits = open_folder(tmp_path)[0].logits
    assert logits[2, 0, 1, 2] == values[2, 2, 1, 0]


def test_nifti_shapes_that_disagree(tmp_path: Path) -> None:
    write_nifti_case(tmp_path, "last")
    nibabel.save(nibabel.Nifti1Image(np.zeros((6, 4, 4), np.uint8), AFFINE), tmp_path / "labels/a.nii.gz")
    message = complaint(tmp_path)
    assert "logits/a.nii.gz' must have NIfTI shape (L, 6, 4, 4) or (6, 4, 4, L)" in message
    assert "got (6, 4, 3, 2)" in message


def test_labels_with_a_time_axis_of_one(tmp_path: Path) -> None:
    write_nifti_case(tmp_path, "last")
    labels = np.zeros((6, 4, 3, 1), np.uint8)
    labels[5, 2, 1] = 1
    nibabel.save(nibabel.Nifti1Image(labels, AFFINE), tmp_path / "labels/a.nii.gz")
    folder = open_folder(tmp_path)
    assert np.argwhere(folder[0].labels).tolist() == [[1, 2, 5]]
    path = write_map(tmp_path / "out", "a", np.ones((3, 4, 6), np.float32), folder)
    assert nibabel.load(path).shape == (6, 4, 3, 1)


@pytest.mark.parametrize("layout", ["first", "last", "vector"])
@pytest.mark.parametrize("extension", [".nii.gz", ".nii"])
def test_nifti_there_and_back(tmp_path: Path, layout: str, extension: str) -> None:
    write_nifti_case(tmp_path, layout, extension)
    folder = open_folder(tmp_path)
    path = write_scores(tmp_path / "out", "a", np.asarray(folder[0].logits, np.float16), folder)
    assert path == tmp_path / f"out/a{extension}"
    written, source = nibabel.load(path), nibabel.load(tmp_path / f"logits/a{extension}")
    np.testing.assert_array_equal(written.get_fdata(), np.float16(source.get_fdata()))
    np.testing.assert_array_equal(written.affine, AFFINE)
    assert written.header.get_zooms() == source.header.get_zooms()
    assert written.header.get_xyzt_units() == source.header.get_xyzt_units()
    assert written.get_data_dtype() == np.float32
    assert sorted(file.name for file in path.parent.iterdir()) == [f"a{extension}"]  # nothing temporary is left


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("labels", [".nii.gz", ".npy", None])
def test_maps_of_nifti_scores(tmp_path: Path, layout: str, labels: str | None) -> None:
    """They have the affine of the labels, or of the scores where the labels have none or there are none."""
    write_nifti_case(tmp_path, layout)
    if labels != ".nii.gz":
        (tmp_path / "labels/a.nii.gz").unlink()
    if labels == ".npy":
        np.save(tmp_path / "labels/a.npy", np.zeros((3, 4, 6), np.uint8))
    folder = open_folder(tmp_path, require_labels=labels is not None, num_classes=2)
    assert folder[0].spacing == (4.0, 3.0, 2.0)
    temperature = torch.ones(3, 4, 6)
    temperature[1, 2, 5] = 7.5
    written = nibabel.load(write_map(tmp_path / "out", "a", temperature, folder))
    assert np.argwhere(written.get_fdata() == 7.5).tolist() == [[5, 2, 1]]
    np.testing.assert_array_equal(written.affine, AFFINE)
    assert written.header.get_zooms() == (2.0, 3.0, 4.0)
    assert written.header.get_xyzt_units()[0] == "mm"
    assert written.header.get_intent()[0] == "none"  # temperatures are no labels
    assert written.get_data_dtype() == np.float32
    with pytest.raises(InputError, match="NIfTI shape"):
        write_map(tmp_path / "other", "a", torch.ones(3, 4, 5), folder)
    classes = nibabel.load(write_map(tmp_path / "classes", "a", np.full((3, 4, 6), 200, np.uint8), folder))
    assert classes.get_data_dtype() == np.uint8
    assert (np.asarray(classes.dataobj) == 200).all()


def test_files_have_the_byte_order_of_their_source(tmp_path: Path) -> None:
    write_nifti_case(tmp_path, "last")
    for path in (tmp_path / "logits/a.nii.gz", tmp_path / "labels/a.nii.gz"):
        image = nibabel.load(path)
        values = np.asarray(image.dataobj)
        nibabel.save(nibabel.Nifti1Image(values, image.affine, nibabel.Nifti1Header(endianness=">")), path)
    folder, values = open_folder(tmp_path), np.arange(72.0, dtype=np.float32).reshape(3, 4, 6)
    written = nibabel.load(write_map(tmp_path / "out", "a", values, folder))
    assert written.header.endianness == ">"
    np.testing.assert_array_equal(written.get_fdata(), values.T)


def test_scaled_nifti_is_read_and_written_in_true_values(tmp_path: Path) -> None:
    write_nifti_case(tmp_path, "last")
    image = nibabel.load(tmp_path / "logits/a.nii.gz")
    image.header.set_data_dtype(np.int16)
    image.header.set_slope_inter(0.5, 10)
    nibabel.save(nibabel.Nifti1Image(image.get_fdata(), AFFINE, image.header), tmp_path / "logits/b.nii.gz")
    (tmp_path / "logits/b.nii.gz").rename(tmp_path / "logits/a.nii.gz")
    folder = open_folder(tmp_path)
    np.testing.assert_allclose(folder[0].logits[1, 2, 3, 5], 1532, atol=0.1)
    written = nibabel.load(write_scores(tmp_path / "out", "a", folder[0].logits, folder))
    np.testing.assert_allclose(written.get_fdata()[5, 3, 2, 1], 1532, atol=0.1)


def test_class_axis_without_labels(tmp_path: Path) -> None:
    write_nifti_case(tmp_path, "first")  # NIfTI shape 2 6 4 3
    (tmp_path / "labels/a.nii.gz").unlink()
    message = complaint(tmp_path, require_labels=False)
    assert f"the class axis of '{tmp_path}/logits/a.nii.gz' must be known, got NIfTI shape (2, 6, 4, 3)" in message
    assert "; give num_classes" in message
    folder = open_folder(tmp_path, require_labels=False, num_classes=2)
    assert folder.spatial_dims == 3
    assert folder[0].logits[1, 2, 3, 5] == 1532
    assert folder[0].spacing == (4.0, 3.0, 2.0)
    (tmp_path / "segcal.toml").write_text('classes = ["a", "b"]')
    assert open_folder(tmp_path, require_labels=False)[0].logits[0, 1, 0, 4] == 401
    (tmp_path / "segcal.toml").unlink()
    assert "must have num_classes=7 entries along the first or the last" in complaint(
        tmp_path, require_labels=False, num_classes=7
    )


@pytest.mark.parametrize("layout", ["last", "vector"])
@pytest.mark.parametrize("num_classes", [None, 2])
def test_class_axis_last_without_labels(tmp_path: Path, layout: str, num_classes: int | None) -> None:
    write_nifti_case(tmp_path, layout)
    (tmp_path / "labels/a.nii.gz").unlink()
    folder = open_folder(tmp_path, require_labels=False, num_classes=num_classes)
    assert (folder.num_classes, folder.spatial_dims) == (2, 3)
    assert folder[0].logits[1, 2, 3, 5] == 1532
    assert folder[0].labels is None


def test_flat_nifti_without_labels(tmp_path: Path) -> None:
    save(tmp_path / "logits/a.nii.gz", logits_of(2))  # NIfTI shape 6 4 5
    assert "class axis" in complaint(tmp_path, require_labels=False)
    folder = open_folder(tmp_path, require_labels=False, num_classes=5)
    assert folder.spatial_dims == 2
    np.testing.assert_array_equal(folder[0].logits, logits_of(2))


def moved(path: Path, by: float) -> None:
    """Write the file again with another origin."""
    image, affine = nibabel.load(path), AFFINE.copy()
    affine[1, 3] += by
    nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), affine), path)


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("where", ["labels", "logits", "images"])
def test_files_in_different_places(tmp_path: Path, layout: str, where: str) -> None:
    write_nifti_case(tmp_path, layout)
    save(tmp_path / "images/a.nii.gz", np.zeros((3, 4, 6), np.float32))
    path = tmp_path / where / "a.nii.gz"
    moved(path, 5e-4)  # what rounding may do
    read_all(open_folder(tmp_path))
    moved(path, 0.5)
    if where == "images":
        (tmp_path / "labels/a.nii.gz").rename(tmp_path / "a.nii.gz")
        assert "lie in different places" in complaint(tmp_path, require_labels=False, num_classes=2)
        (tmp_path / "a.nii.gz").rename(tmp_path / "labels/a.nii.gz")
    message = complaint(tmp_path)
    assert f"{tmp_path}/labels/a.nii.gz' of case 'a' lie in different places (affines differ), by up to 0.5" in message
    assert message.endswith("; resample one to the other")


def test_files_in_no_place(tmp_path: Path) -> None:
    """And no warning of NumPy, which is an error here."""
    write_nifti_case(tmp_path, "first")
    for where in ("labels", "logits"):
        moved(tmp_path / where / "a.nii.gz", np.inf)
    assert "lie in different places (affines differ), by up to nan" in complaint(tmp_path)


def test_vector_images_of_itk_stay_vector_images(tmp_path: Path) -> None:
    """ITK reads a fifth axis as channels of a vector image if the header says so."""
    vector = nibabel.Nifti1Image(logits_of(3).T[:, :, :, None, :], AFFINE)
    vector.header.set_intent("vector")
    (tmp_path / "logits").mkdir()
    nibabel.save(vector, tmp_path / "logits/a.nii.gz")
    save(tmp_path / "labels/a.nii.gz", labels_of(3))
    folder = open_folder(tmp_path)
    written = nibabel.load(write_scores(tmp_path / "out", "a", folder[0].logits, folder))
    assert written.shape == vector.shape
    assert written.header.get_intent()[0] == "vector"
    assert nibabel.load(write_map(tmp_path / "maps", "a", labels_of(3), folder)).header.get_intent()[0] == "none"
