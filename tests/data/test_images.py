"""Images beside the scores: pictures, arrays and volumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from PIL import Image

from segcal.data.folders.folder import Folder, open_folder
from support.scenes import (
    AFFINE,
    complaint,
    save,
    write_arrays,
)


def with_image(root: Path, extension: str, image: np.ndarray, **options: Any) -> Folder:
    write_arrays(root, "a", dims=options.get("dims", 2))
    (root / "images").mkdir()
    if extension == ".npy":
        np.save(root / "images/a.npy", image)
    elif "nii" in extension:
        nibabel.save(nibabel.Nifti1Image(image, AFFINE), root / f"images/a{extension}")
    else:
        Image.fromarray(image).save(root / f"images/a{extension}", **options.get("save", {}))
    return open_folder(root)


@pytest.mark.parametrize("extension", [".png", ".webp"])
def test_colour_pictures(tmp_path: Path, extension: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    folder = with_image(tmp_path, extension, pixels, save={"lossless": True} if extension == ".webp" else {})
    image = folder[0].image
    assert folder.image_channels == 3
    assert image.dtype == np.float32
    np.testing.assert_allclose(image, pixels.transpose(2, 0, 1) / 255, rtol=1e-6)


@pytest.mark.parametrize("extension", [".jpg", ".jpeg"])
def test_jpeg_pictures(tmp_path: Path, extension: str) -> None:
    image = with_image(tmp_path, extension, np.full((4, 6, 3), 51, np.uint8))[0].image
    assert image.shape == (3, 4, 6)
    np.testing.assert_allclose(image, 0.2, atol=0.01)


def test_grey_pictures_of_eight_and_sixteen_bits(tmp_path: Path) -> None:
    (tmp_path / "8").mkdir()
    (tmp_path / "16").mkdir()
    eight = with_image(tmp_path / "8", ".png", np.full((4, 6), 255, np.uint8))
    assert eight.image_channels == 1
    np.testing.assert_array_equal(eight[0].image, np.ones((1, 4, 6), np.float32))
    sixteen = with_image(tmp_path / "16", ".png", np.full((4, 6), 13107, np.uint16))
    assert sixteen[0].image.shape == (1, 4, 6)
    np.testing.assert_allclose(sixteen[0].image, 0.2, rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"transparency": b"\xff\x80"}])
def test_palette_picture_as_image_is_its_colours(tmp_path: Path, options: dict[str, bytes]) -> None:
    """Also where some are transparent, of which Pillow would warn."""
    write_arrays(tmp_path, "a")
    (tmp_path / "images").mkdir()
    picture = Image.new("P", (6, 4), 1)
    picture.putpalette([0, 0, 0, 255, 51, 0])
    picture.save(tmp_path / "images/a.png", **options)
    image = open_folder(tmp_path)[0].image
    np.testing.assert_allclose(image[:, 0, 0], [1.0, 0.2, 0.0], rtol=1e-6)


@pytest.mark.parametrize(("shape", "channels"), [((4, 6), 1), ((2, 4, 6), 2)])
def test_npy_images_are_taken_as_they_are(tmp_path: Path, shape: tuple[int, ...], channels: int) -> None:
    values = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    folder = with_image(tmp_path, ".npy", values)
    assert folder.image_channels == channels
    np.testing.assert_array_equal(folder[0].image, values.reshape(channels, 4, 6))


@pytest.mark.parametrize("channels", [1, 2])
def test_nifti_images(tmp_path: Path, channels: int) -> None:
    values = np.random.default_rng(0).normal(size=(6, 4, 3, channels)).astype(np.float32)  # x y z c
    folder = with_image(tmp_path, ".nii.gz", values if channels == 2 else values[..., 0], dims=3)
    assert folder.image_channels == channels
    np.testing.assert_array_equal(folder[0].image, values.T)
    assert folder[0].spacing == (4.0, 3.0, 2.0)


def test_all_images_or_none(tmp_path: Path) -> None:
    write_arrays(tmp_path, "abc")
    (tmp_path / "images").mkdir()
    assert open_folder(tmp_path)[0].image is None  # an empty folder is none
    for name in "ac":
        Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(tmp_path / f"images/{name}.png")
    assert f"case 'b' must have one image file, got none at '{tmp_path}/images/b.png'" in complaint(tmp_path)


def test_images_that_disagree(tmp_path: Path) -> None:
    write_arrays(tmp_path, "ab")
    save(tmp_path / "images/a.npy", np.zeros((3, 4, 6), np.float32))
    save(tmp_path / "images/b.npy", np.zeros((3, 4, 5), np.float32))
    assert "image must have shape (C, 4, 6)" in (message := complaint(tmp_path))
    assert "got (3, 4, 5) of case 'b'" in message
    save(tmp_path / "images/b.npy", np.zeros((4, 6), np.float32))
    assert "images must have 3 channels" in (message := complaint(tmp_path))
    assert "got shape (1, 4, 6) of case 'b'" in message
    save(tmp_path / "images/b.npy", np.full((3, 4, 6), np.inf, np.float32))
    assert "images must be finite" in complaint(tmp_path)
    save(tmp_path / "images/a.npy", np.float32(1.0))
    assert "as [C, *S] or [*S], got shape () of case 'a'" in complaint(tmp_path)
