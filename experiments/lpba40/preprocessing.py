"""Preparation of MR volumes as in the paper (appendix "Implementation"): affine alignment, histogram equalisation."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Num

from segcal.files import read_json, staged_file
from segcal.types import Array, InputError

_VERSION = 1  # of the alignment: raise it when a change gives other transforms, so that cached ones are not used
_TO_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])  # NIfTI counts towards right and anterior, ITK towards left and posterior


def equalised(
    image: Num[np.ndarray, "*S"], mask: Bool[np.ndarray, "*S"] | None = None, *, bins: int = 256
) -> Float32[np.ndarray, "*S"]:
    """Return intensities in 0..1 whose distribution inside a mask is nearly uniform; 0 outside it.

    Each intensity becomes the share of the mask's voxels at or below it, read from a histogram and interpolated between
    the bins. The result does not depend on the scale and offset of the intensities.

    Args:
        image: Intensities of any type.
        mask: Which voxels count, such as the brain; all of them by default.
        bins: Of the histogram.
    """
    inside = np.ones(image.shape, dtype=bool) if mask is None else mask
    if not inside.any():
        raise InputError("histogram equalisation needs at least one voxel, and the mask is empty")
    values = image[inside].astype(np.float64)
    if not np.isfinite(values).all():
        raise InputError("intensities must be finite to be equalised, got NaN or infinity; replace them")
    counts, edges = np.histogram(values, bins=bins)
    shares = np.concatenate([[0.0], np.cumsum(counts) / values.size])
    result = np.zeros(image.shape, dtype=np.float32)
    result[inside] = np.interp(values, edges, shares)
    return result


class Located(NamedTuple):
    """A volume `[z, y, x]` and where it lies: the affine from voxels (x, y, z) to millimetres, as in NIfTI."""

    values: Array
    affine: Array


def read_located(path: str | Path) -> Located:
    """Read a NIfTI or Analyze file with its affine; axes of length one after the third are dropped."""
    nibabel: Any = _required("nibabel")
    image = nibabel.load(path)
    values = np.asarray(image.dataobj)
    return Located(values.reshape(values.shape[:3]).T, np.asarray(image.affine, dtype=np.float64))


def affine_between(fixed: Path, moving: Path, *, cache: Path | None = None) -> list[float]:
    """Return the affine transform that takes points of `fixed` to `moving`: 12 numbers as ITK stores them, in LPS.

    Args:
        fixed: The image to align with, such as a template.
        moving: The image to be aligned.
        cache: Folder in which the result is kept; it is read from there when both files are unchanged.
    """
    if cache is None:
        return _register(read_located(fixed), read_located(moving))
    digest = hashlib.sha256(json.dumps([_VERSION, *(_digest(path) for path in (fixed, moving))]).encode())
    kept = cache / f"affine-{digest.hexdigest()[:24]}.json"
    if kept.exists():
        return [float(value) for value in read_json(kept)]
    found = _register(read_located(fixed), read_located(moving))
    with staged_file(kept) as file:
        file.write_text(json.dumps(found), encoding="utf-8")
    return found


def resampled(moving: Located, onto: Located, transform: list[float], *, nearest: bool = False) -> Array:
    """Return the values of `moving` at the voxels of `onto`, 0 outside: linear, or nearest for labels."""
    sitk: Any = _required("SimpleITK")
    affine = sitk.AffineTransform(3)
    affine.SetMatrix(transform[:9])
    affine.SetTranslation(transform[9:])
    method = sitk.sitkNearestNeighbor if nearest else sitk.sitkLinear
    values: Array = sitk.GetArrayFromImage(sitk.Resample(_itk(moving), _itk(onto), affine, method, 0.0))
    return values


def _register(fixed: Located, moving: Located) -> list[float]:
    """Maximise mutual information over affine transforms, from coarse to fine."""
    sitk: Any = _required("SimpleITK")
    target, source = (_itk(Located(each.values.astype(np.float32), each.affine)) for each in (fixed, moving))
    start = sitk.CenteredTransformInitializer(
        target, source, sitk.AffineTransform(3), sitk.CenteredTransformInitializerFilter.MOMENTS
    )
    method = sitk.ImageRegistrationMethod()
    method.SetMetricAsMattesMutualInformation(32)
    method.SetMetricSamplingStrategy(method.RANDOM)
    method.SetMetricSamplingPercentage(0.2, 1)  # the second number seeds the sample
    method.SetInterpolator(sitk.sitkLinear)
    method.SetOptimizerAsRegularStepGradientDescent(1.0, 1e-4, 200)
    method.SetOptimizerScalesFromPhysicalShift()
    method.SetShrinkFactorsPerLevel([4, 2, 1])
    method.SetSmoothingSigmasPerLevel([2, 1, 0])
    method.SetInitialTransform(start, inPlace=True)
    method.Execute(target, source)
    # the offset folds the centre of rotation in, so that 12 numbers say it all
    origin = np.array(start.TransformPoint((0.0, 0.0, 0.0)))
    return [float(value) for value in (*start.GetMatrix(), *origin)]


def _itk(located: Located) -> Any:
    """Return the volume as a SimpleITK image in the place that its affine says."""
    sitk: Any = _required("SimpleITK")
    values = located.values if located.values.dtype != np.bool_ else located.values.astype(np.uint8)
    image = sitk.GetImageFromArray(np.ascontiguousarray(values))
    affine = _TO_LPS @ located.affine
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    image.SetSpacing([float(length) for length in spacing])
    image.SetDirection([float(value) for value in (affine[:3, :3] / spacing).ravel()])
    image.SetOrigin([float(value) for value in affine[:3, 3]])
    return image


def _digest(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"'{path}' must be a NIfTI or Analyze file to align, and is missing")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _required(package: str) -> Any:
    try:
        return __import__(package)
    except ImportError as error:
        raise InputError(f"aligning volumes needs {package}, which is missing; pip install segcal[medical]") from error
