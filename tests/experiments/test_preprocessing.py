"""Histogram equalisation against ranks, and affine alignment against a known transform."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter

from experiments.lpba40.preprocessing import Located, affine_between, equalised, read_located, resampled
from segcal.types import InputError


def test_equalised_intensities_are_shares_of_the_voxels_below(rng: np.random.Generator) -> None:
    image = rng.exponential(size=2000)
    shares = (image[None] <= image[:, None]).mean(axis=1)  # the empirical distribution, voxel by voxel
    np.testing.assert_allclose(equalised(image, bins=4096), shares, atol=5e-3)
    assert np.histogram(equalised(image, bins=4096), bins=10, range=(0, 1))[0].std() < 10


def test_equalisation_worked_by_hand() -> None:
    # bins [0, 1), [1, 2), [2, 3), [3, 4] hold 2, 0, 1 and 1 of four voxels
    image = np.array([0, 0, 2, 4])
    np.testing.assert_allclose(equalised(image, bins=4), [0, 0, 0.5, 1])


@given(st.floats(0.1, 1e4), st.floats(-100, 100))
def test_scale_and_offset_do_not_matter(scale: float, offset: float) -> None:
    image = np.arange(64.0) ** 1.5
    np.testing.assert_allclose(equalised(scale * image + offset), equalised(image), atol=2e-2)


def test_voxels_outside_the_mask_are_zero_and_do_not_count() -> None:
    image, mask = np.array([1000.0, 1, 2, 3]), np.array([False, True, True, True])
    np.testing.assert_allclose(equalised(image, mask)[1:], equalised(image[1:]))
    assert equalised(image, mask)[0] == 0
    with pytest.raises(InputError, match="mask is empty"):
        equalised(image, np.zeros(4, dtype=bool))
    with pytest.raises(InputError, match="must be finite"):
        equalised(np.array([np.nan, 1.0]))


def blob(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """A smooth asymmetric object on a dark background."""
    random = np.random.default_rng(seed)
    noise = gaussian_filter(random.normal(size=shape), 3)
    centre = np.stack(np.meshgrid(*(np.linspace(-1, 1, length) for length in shape), indexing="ij"))
    return np.where((centre**2).sum(axis=0) < 0.5, 2 + noise / noise.std(), 0).astype(np.float32)


def test_alignment_recovers_a_known_transform(tmp_path: Path) -> None:
    nibabel, _ = pytest.importorskip("nibabel"), pytest.importorskip("SimpleITK")
    fixed = blob((24, 28, 32))
    oblique = np.array([[-2.0, 0.2, 0, 30], [0.1, 2.0, 0.1, -20], [0, -0.1, 2.0, 10], [0, 0, 0, 1]])
    true = np.array([[1.05, 0.03, 0, 3], [-0.02, 0.97, 0.02, -2], [0.01, 0, 1.02, 2], [0, 0, 0, 1]])
    nibabel.save(nibabel.Nifti1Image(fixed.T, oblique), tmp_path / "fixed.nii.gz")
    nibabel.save(nibabel.Nifti1Image(fixed.T, true @ oblique), tmp_path / "moving.nii.gz")
    found = affine_between(tmp_path / "fixed.nii.gz", tmp_path / "moving.nii.gz", cache=tmp_path / "cache")
    onto, moving = (read_located(tmp_path / f"{name}.nii.gz") for name in ("fixed", "moving"))
    back = resampled(moving, onto, found)
    inside = fixed > 0
    assert np.abs(back - fixed)[inside].mean() < 0.25 * fixed[inside].std()
    labels = resampled(Located((fixed > 2).astype(np.uint8), true @ oblique), onto, found, nearest=True)
    assert ((labels > 0) == (fixed > 2)).mean() > 0.95
    # a second call reads the cache, which a change of the file invalidates
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_text(kept.read_text().replace(str(found[0]), "7.0"))
    assert affine_between(tmp_path / "fixed.nii.gz", tmp_path / "moving.nii.gz", cache=tmp_path / "cache")[0] == 7


def test_volumes_lie_where_simpleitk_reads_them(tmp_path: Path) -> None:
    nibabel, sitk = pytest.importorskip("nibabel"), pytest.importorskip("SimpleITK")
    from experiments.lpba40.preprocessing import _itk

    affine = np.array([[0, -1.5, 0, 4], [1.0, 0, 0, 5], [0, 0, 2.0, 6], [0, 0, 0, 1]])
    nibabel.save(nibabel.Nifti1Image(np.arange(24, dtype=np.int16).reshape(2, 3, 4), affine), tmp_path / "a.nii")
    ours, theirs = _itk(read_located(tmp_path / "a.nii")), sitk.ReadImage(str(tmp_path / "a.nii"))
    for index in [(0, 0, 0), (1, 2, 3)]:
        assert ours[index] == theirs[index]
        mine, other = (image.TransformIndexToPhysicalPoint(index) for image in (ours, theirs))
        np.testing.assert_allclose(mine, other, atol=1e-5)
