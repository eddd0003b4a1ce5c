"""Register one atlas to one target: affine, then deformable (Sec. 4, "Downstream MAS setting").

SimpleITK does the work (`pip install segcal[medical]`). The affine transform maximises the normalised correlation; fast
symmetric-forces demons then refine it from coarse to fine on intensities matched to the target's. The displacement
field is smoothed after every iteration, which keeps it from folding on most pairs; whether it folds is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from segcal.types import Array, InputError

LEAST_SIMILARITY = 0.5
"""Correlation between target and warped atlas below which a registration counts as failed."""

MOST_FOLDING = 0.01
"""Share of voxels with a Jacobian determinant of 0 or less above which a registration counts as failed."""


@dataclass(frozen=True)
class RegistrationSettings:
    """Parameters of the affine and of the deformable registration.

    Args:
        affine_iterations: Steps of the affine optimiser at each of its two resolutions.
        shrink: Factors by which the demons' resolutions are coarser than the image, coarse to fine.
        iterations: Steps of the demons at each resolution.
        smoothing: Standard deviation, in voxels, of the Gaussian that smooths the displacement field.
    """

    affine_iterations: int = 30
    shrink: tuple[int, ...] = (2, 1)
    iterations: tuple[int, ...] = (40, 30)
    smoothing: float = 1.0

    def __post_init__(self) -> None:
        if len(self.shrink) != len(self.iterations):
            raise InputError(
                f"shrink and iterations must have one entry per resolution, got {self.shrink} and {self.iterations}"
            )


class Volume(NamedTuple):
    """An image `[z, y, x]` in 0..1, its labels and the size of a voxel in mm, in the same order of axes."""

    image: Array
    labels: Array
    spacing: tuple[float, ...]


class RegistrationQuality(NamedTuple):
    """Similarity of the images after a registration, and folding of its deformation.

    Similarities are correlations between the target and the atlas: centred on it, after the affine transform, and
    after the deformable one. `folding` is the share of voxels with a Jacobian determinant of 0 or less.
    """

    centred: float
    affine: float
    deformable: float
    folding: float

    @property
    def problem(self) -> str | None:
        """Reason why the registration counts as failed, or None."""
        if not self.deformable >= LEAST_SIMILARITY:  # written so that NaN is wrong as well
            return f"similarity {self.deformable:.2f} is below {LEAST_SIMILARITY}"
        if self.folding > MOST_FOLDING:
            return f"{100 * self.folding:.1f} % of the voxels fold"
        return None


class Warp(NamedTuple):
    """An atlas in the space of a target."""

    image: Array
    labels: Array
    quality: RegistrationQuality


def normalised(image: Array) -> Array:
    """Scale intensities so that their 1st and 99th percentiles become 0 and 1, and clip what lies outside.

    Examples:
        >>> normalised(np.arange(101.0))[[0, 1, 50, 99, 100]]
        array([0. , 0. , 0.5, 1. , 1. ], dtype=float32)
    """
    low, high = np.percentile(image, (1, 99))
    if not low < high:
        raise InputError(f"an image must have more than one intensity to be registered, got {low} almost everywhere")
    scaled: Array = np.clip((image - low) / (high - low), 0, 1).astype(np.float32)
    return scaled


def register(target: Volume, atlas: Volume, settings: RegistrationSettings | None = None) -> Warp:
    """Return the atlas warped to the target: its image linearly interpolated, its labels by nearest neighbour."""
    sitk, settings = simple_itk(), settings or RegistrationSettings()
    fixed, moving = (_image(sitk, np.asarray(one.image, np.float32), one.spacing) for one in (target, atlas))
    labels = _image(sitk, atlas.labels, atlas.spacing)
    start = _centred(sitk, fixed, moving)
    affine = _affine(sitk, fixed, moving, start, settings.affine_iterations)
    centred, fitted = (_similarity(sitk, fixed, _warped(sitk, moving, fixed, t)) for t in (start, affine))
    # where the images overlap little, the optimiser can end below its start
    first = affine if fitted >= centred else start
    field = _demons(sitk, fixed, moving, first, settings)
    # a copy, since a view does not keep its image alive
    jacobian = sitk.GetArrayFromImage(sitk.DisplacementFieldJacobianDeterminant(field))
    folding = float((jacobian <= 0).mean())
    whole = sitk.CompositeTransform([first, sitk.DisplacementFieldTransform(field)])  # takes the field's contents
    image = _warped(sitk, moving, fixed, whole)
    nearest = sitk.Resample(labels, fixed, whole, sitk.sitkNearestNeighbor, 0)
    quality = RegistrationQuality(centred, max(centred, fitted), _similarity(sitk, fixed, image), folding)
    return Warp(sitk.GetArrayFromImage(image), sitk.GetArrayFromImage(nearest), quality)


def simple_itk() -> Any:
    """Return the module SimpleITK, or say how to install it."""
    try:
        import SimpleITK  # noqa: PLC0415  (an optional dependency)
    except ImportError as error:
        raise InputError("registration needs SimpleITK, which is not installed; pip install segcal[medical]") from error
    return SimpleITK


def _image(sitk: Any, array: Array, spacing: tuple[float, ...]) -> Any:
    image = sitk.GetImageFromArray(np.ascontiguousarray(array))
    image.SetSpacing([float(size) for size in spacing[::-1]])
    return image


def _centred(sitk: Any, fixed: Any, moving: Any) -> Any:
    centre = sitk.CenteredTransformInitializerFilter.GEOMETRY
    return sitk.CenteredTransformInitializer(fixed, moving, sitk.AffineTransform(fixed.GetDimension()), centre)


def _affine(sitk: Any, fixed: Any, moving: Any, start: Any, iterations: int) -> Any:
    method = sitk.ImageRegistrationMethod()
    method.SetMetricAsCorrelation()
    method.SetInterpolator(sitk.sitkLinear)
    method.SetOptimizerAsRegularStepGradientDescent(1.0, 1e-3, iterations, 0.5)
    method.SetOptimizerScalesFromPhysicalShift()
    method.SetShrinkFactorsPerLevel([2, 1])
    method.SetSmoothingSigmasPerLevel([1, 0])
    method.SetInitialTransform(start, inPlace=False)
    return method.Execute(fixed, moving)


def _demons(sitk: Any, fixed: Any, moving: Any, first: Any, settings: RegistrationSettings) -> Any:
    """Return the displacement field, in mm, that follows the transform `first`."""
    field = None
    for factor, iterations in zip(settings.shrink, settings.iterations, strict=True):
        target, atlas = fixed, moving
        if factor > 1:
            sigma = [0.7 * factor * size for size in fixed.GetSpacing()]
            target = sitk.Shrink(sitk.SmoothingRecursiveGaussian(fixed, sigma), [factor] * fixed.GetDimension())
            atlas = sitk.SmoothingRecursiveGaussian(moving, sigma)
        atlas = sitk.HistogramMatching(_warped(sitk, atlas, target, first), target, 64, 10, False)
        demons = sitk.FastSymmetricForcesDemonsRegistrationFilter()
        demons.SetNumberOfIterations(iterations)
        demons.SetSmoothDisplacementField(True)
        demons.SetStandardDeviations(settings.smoothing)
        if field is None:
            field = demons.Execute(target, atlas)
        else:
            field = demons.Execute(target, atlas, _on_grid(sitk, field, target))
    return sitk.Cast(_on_grid(sitk, field, fixed), sitk.sitkVectorFloat64)


def _on_grid(sitk: Any, field: Any, like: Any) -> Any:
    """A displacement field on the voxels of another image; at the edge it continues as it ends."""
    return sitk.Resample(field, like, sitk.Transform(), sitk.sitkLinear, 0.0, field.GetPixelID(), True)


def _warped(sitk: Any, moving: Any, fixed: Any, transform: Any) -> Any:
    """Resample an image; beyond its edge it continues as it ends, as zeros there would be edges to align."""
    return sitk.Resample(moving, fixed, transform, sitk.sitkLinear, 0.0, sitk.sitkFloat32, True)


def _similarity(sitk: Any, fixed: Any, warped: Any) -> float:
    one, other = (sitk.GetArrayViewFromImage(image).reshape(-1).astype(np.float64) for image in (fixed, warped))
    if one.std() == 0 or other.std() == 0:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])
