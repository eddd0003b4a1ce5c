"""Register atlases to targets: affine, then deformable (Sec. 4, "Downstream MAS setting"), and keep the warps on disk.

SimpleITK does the work (`pip install segcal[medical]`). The affine transform maximises the normalised correlation; fast
symmetric-forces demons then refine it from coarse to fine on intensities matched to the target's. The displacement
field is smoothed after every iteration, which keeps it from folding on most pairs; whether it folds is measured.

Many pairs are registered in parallel, resumable, safe against a kill at any moment. A warp is one file,
`FOLDER/TARGET/ATLAS.npz`, written under a temporary name and then renamed, so a file of that name is always whole. It
holds a digest of the two volumes and of the settings: a warp made from other data is made again. A file of that name
without segcal's signature is never replaced.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from segcal.data.io.arrays import read_array
from segcal.files import signed_file
from segcal.files.guards import refuse_foreign_file
from segcal.types import Array, InputError, extra

LEAST_SIMILARITY = 0.5
"""Correlation between target and warped atlas below which a registration counts as failed."""

MOST_FOLDING = 0.01
"""Share of voxels with a Jacobian determinant of 0 or less above which a registration counts as failed."""

LEVELS = 256
"""Grey levels of a warped image on disk; the noise of an MR image is far above the rounding."""


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
    """Return the module SimpleITK."""
    return extra("SimpleITK", "registration needs SimpleITK", "medical")


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


Read = Callable[[str], Volume]
Watch = Callable[["RegistrationOutcome", int, int], None]


class Pair(NamedTuple):
    """An atlas to be registered to a target, by name."""

    atlas: str
    target: str


class RegistrationOutcome(NamedTuple):
    """Quality of the registration of a pair, or the error that stopped it; `made` is False where the warp existed."""

    pair: Pair
    quality: RegistrationQuality | None
    made: bool
    error: str | None = None

    @property
    def problem(self) -> str | None:
        """Error, or reason why the registration counts as failed, or None."""
        return self.error if self.quality is None else self.quality.problem


def register_pairs(
    pairs: Sequence[Pair],
    read: Read,
    folder: str | Path,
    settings: RegistrationSettings | None = None,
    *,
    processes: int = 1,
    watch: Watch | None = None,
) -> list[RegistrationOutcome]:
    """Register each pair whose warp does not exist yet; outcomes are in the order of `pairs`.

    Args:
        pairs: Atlases and targets.
        read: Returns the volume of a name; with several processes it must be importable (a function of a module, or a
            `functools.partial` of one).
        folder: Folder of the warps.
        settings: Parameters of the registration.
        processes: Number of pairs to register at a time.
        watch: Called after each pair with its outcome, the number done and the number of all.
    """
    simple_itk()  # before processes start, so that its absence is reported once
    settings = settings or RegistrationSettings()
    work = partial(_register_one, read=read, folder=Path(folder), settings=settings)
    outcomes = list[RegistrationOutcome]()
    with ExitStack() as stack:
        each: Callable[..., Any] = map
        if processes > 1:  # new interpreters: a fork of a process whose libraries hold threads can hang
            pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))
            each = stack.enter_context(pool).map
        for outcome in each(work, pairs):
            outcomes.append(outcome)
            if watch is not None:
                watch(outcome, len(outcomes), len(pairs))
    return outcomes


def warp_path(folder: str | Path, pair: Pair) -> Path:
    """Return the path of the warp of a pair."""
    return Path(folder) / pair.target / f"{pair.atlas}.npz"


def read_warp(folder: str | Path, pair: Pair) -> Warp:
    """Read the warp of a pair."""
    return _read(folder, pair)[0]


def _read(folder: str | Path, pair: Pair) -> tuple[Warp, str]:
    """Return a warp and the digest of what it was made from."""
    path = warp_path(folder, pair)
    if not path.exists():
        raise InputError(f"'{path}' is missing; register '{pair.atlas}' to '{pair.target}' first")
    image, labels, quality, digest = (read_array(path, name) for name in ("image", "labels", "quality", "digest"))
    if quality.shape != (len(RegistrationQuality._fields),):
        raise InputError(f"'{path}' is damaged; delete it and register again")
    return Warp(decoded(image), labels, RegistrationQuality(*map(float, quality))), digest.tobytes().decode("latin-1")


def write_warp(path: Path, warp: Warp, digest: str) -> None:
    """Write a warp so that it appears whole or not at all; replace nothing but another warp."""
    with signed_file(path) as target:
        np.savez_compressed(
            target,
            image=encoded(warp.image),
            labels=narrowed(warp.labels),
            quality=np.array(warp.quality),
            digest=np.frombuffer(digest.encode(), np.uint8),
        )


def narrowed(labels: Array) -> Array:
    """Return labels in the smallest unsigned type that holds them."""
    return labels.astype(np.min_scalar_type(int(labels.max(initial=0))))


def encoded(image: Array) -> Array:
    """Return an image of 0..1 as differences between neighbouring grey levels, which compress better than the levels.

    Examples:
        >>> encoded(np.array([0.0, 0.2, 1.0, 0.8]))
        array([  0,  51, 204, 205], dtype=uint8)
    """
    grey = np.rint(np.clip(image, 0, 1) * (LEVELS - 1)).astype(np.uint8)
    return np.diff(grey, axis=-1, prepend=np.uint8(0))


def decoded(differences: Array) -> Array:
    """Return the image that `encoded` was given, at its grey levels, as float32."""
    grey: Array = np.cumsum(differences, axis=-1, dtype=np.uint8)
    return grey.astype(np.float32) / (LEVELS - 1)


def digest_of(target: Volume, atlas: Volume, settings: RegistrationSettings) -> str:
    """Return what identifies the inputs of a registration."""
    digest = hashlib.sha256(json.dumps(asdict(settings), sort_keys=True).encode())
    for volume in (target, atlas):
        digest.update(repr((volume.image.shape, volume.spacing)).encode())
        digest.update(np.ascontiguousarray(volume.image, np.float32).tobytes())
        digest.update(np.ascontiguousarray(volume.labels, np.int32).tobytes())
    return digest.hexdigest()


def _register_one(pair: Pair, *, read: Read, folder: Path, settings: RegistrationSettings) -> RegistrationOutcome:
    simple_itk().ProcessObject.SetGlobalDefaultNumberOfThreads(1)  # the pairs are what runs in parallel
    target, atlas = read(pair.target), read(pair.atlas)
    path, digest = warp_path(folder, pair), digest_of(target, atlas, settings)
    with suppress(InputError):  # missing, of somebody else, or damaged
        warp, found = _read(folder, pair)
        if found == digest:
            return RegistrationOutcome(pair, warp.quality, made=False)
    try:  # the other pairs go on after an error
        refuse_foreign_file(path)
        warp = register(target, atlas, settings)
    except InputError as error:
        return RegistrationOutcome(pair, None, made=False, error=str(error))
    except RuntimeError as error:  # what SimpleITK raises
        return RegistrationOutcome(pair, None, made=False, error=f"SimpleITK failed: {str(error).splitlines()[-1]}")
    write_warp(path, warp, digest)
    return RegistrationOutcome(pair, warp.quality, made=True)
