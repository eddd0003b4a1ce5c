"""A population of brains made from one template: the anatomy behind `segcal.load_sample("brain")`.

Real volumes may not be shipped with a package. nilearn's wheel carries the MNI152 T1 template with its maps of grey and
white matter, from which each subject is made by a random smooth deformation, a change of the tissues' balance, new
contrast, a bias field and noise that varies over the volume. A voxel of 3 mm mixes the tissues inside it (partial
volume); its label is the tissue that it has most of. Intensities are all that is simulated here: scores come from a
network, and nothing is injected into them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from scipy.ndimage import gaussian_filter, map_coordinates, uniform_filter, zoom

from segcal.types import Array, InputError

CLASSES = ("background", "CSF", "grey matter", "white matter")
SPACING = (3.0, 3.0, 3.0)
"""Voxel size in mm."""

MISSING = "the brain sample needs the template that nilearn carries; pip install segcal[demo]"

_FILES = "mni_icbm152_{}_tal_nlin_sym_09a_converted.nii.gz"
_BOX = ((0, 168), (15, 219), (15, 183))  # of the template's voxels (z, y, x), 1 mm: the brain with a margin
_STEP = 3
_CONTRAST = (0.0, 0.27, 0.65, 0.87)  # mean intensity of each class in the template


@dataclass(frozen=True)
class Subject:
    """One simulated volume: intensities `[z, y, x]` with mean 0 and variance 1 in the brain, and labels."""

    name: str
    image: Float32[np.ndarray, "D H W"]
    labels: Array


def has_template() -> bool:
    """Return whether the brain sample can be made: nilearn and nibabel are installed."""
    return find_spec("nilearn") is not None and find_spec("nibabel") is not None


def simulate_brain(number: int) -> Subject:
    """Return subject `number` of the population, the same on every machine."""
    random = np.random.default_rng([20200805, number])
    tissues, texture = _template()
    coordinates = _deformed_grid(tissues.shape[1:], random)
    shares = np.stack([_sampled(each, coordinates) for each in tissues])
    shares = _rebalanced(np.concatenate([np.clip(1 - shares.sum(axis=0, keepdims=True), 0, 1), shares]), random)
    image = _scanned(shares, _sampled(texture, coordinates), random)
    return Subject(f"brain-{number:03d}", image, shares.argmax(axis=0).astype(np.uint8))


@cache
def _template() -> tuple[Array, Array]:
    """Return the shares of CSF, grey and white matter `[3, D, H, W]`, averaged over 3 mm, and the T1's fine texture."""
    t1, grey, white = (_map(name) for name in ("t1", "gm", "wm"))
    brain = gaussian_filter((t1 > 0).astype(np.float32), 1.0)
    fluid = np.clip(brain - grey - white, 0, 1)
    tissues = np.stack([fluid, grey, white])
    expected = np.tensordot(np.array(_CONTRAST[1:], dtype=np.float32), tissues, axes=1)
    texture = np.where(t1 > 0, t1 - expected, 0).astype(np.float32)
    return np.stack([uniform_filter(each, _STEP) for each in tissues]), uniform_filter(texture, _STEP)


def _map(name: str) -> Array:
    """Read one map of the template, in 0..1, cut to the brain; the package itself, slow to import, is not imported."""
    found = find_spec("nilearn")
    if found is None or found.origin is None:
        raise InputError(MISSING)
    path = Path(found.origin).parent / "datasets" / "data" / _FILES.format(name)
    if not path.is_file():
        raise InputError(f"'{path}' is missing from this version of nilearn; {MISSING}")
    from segcal.data.io.nifti import read_volume  # noqa: PLC0415  (importing segcal must not load readers of images)

    values, _ = read_volume(path)
    box = tuple(slice(*ends) for ends in _BOX)
    return np.asarray(values[box], dtype=np.float32) / 255


def _deformed_grid(space: tuple[int, ...], random: np.random.Generator) -> Array:
    """Return where each voxel of 3 mm looks in the template: a random affine map and a smooth displacement."""
    shape = tuple(length // _STEP for length in space)
    axes = [_STEP * np.arange(length) + (_STEP - 1) / 2 for length in shape]
    centre = np.array([length / 2 for length in space])
    grid = np.stack(np.meshgrid(*axes, indexing="ij")) - centre.reshape(3, 1, 1, 1)
    matrix = np.diag(random.uniform(0.93, 1.07, 3)) + random.normal(0, 0.02, (3, 3))
    moved = np.tensordot(matrix, grid, axes=1) + (centre + random.normal(0, 2, 3)).reshape(3, 1, 1, 1)
    displacement = np.stack([3.0 * _smooth(shape, 14, random) + 0.7 * _smooth(shape, 7, random) for _ in range(3)])
    return np.asarray(moved + displacement, dtype=np.float32)


def _rebalanced(shares: Array, random: np.random.Generator) -> Array:
    """Return shares with locally more of one tissue and less of another, such as in a thinner cortex."""
    fields = np.stack([np.zeros(shares.shape[1:]), *(0.3 * _smooth(shares.shape[1:], 6, random) for _ in range(3))])
    changed = shares * np.exp(fields)
    result: Array = (changed / np.maximum(changed.sum(axis=0), 1e-6)).astype(np.float32)
    return result


def _scanned(shares: Array, texture: Array, random: np.random.Generator) -> Float32[np.ndarray, "D H W"]:
    """Return what a scanner shows: the mixed intensities, a bias field and noise, normalised inside the brain."""
    space = shares.shape[1:]
    means = np.array(_CONTRAST) + np.array([0, *random.normal(0, 0.03, 3)])
    clean = np.tensordot(means, shares, axes=1) + random.uniform(0.5, 1.5) * texture
    bias = np.exp(0.07 * _smooth(space, 20, random))
    level = random.uniform(0.02, 0.06) * np.exp(0.4 * _smooth(space, 12, random))
    noise = random.normal(size=(2, *space))
    magnitude = np.hypot(clean * bias + level * noise[0], level * noise[1])  # noise of magnitude images is Rician
    brain = magnitude[shares[0] < 0.5]
    return np.asarray((magnitude - brain.mean()) / brain.std(), dtype=np.float32)


def _sampled(values: Array, coordinates: Array) -> Array:
    found: Array = map_coordinates(values, coordinates, order=1, mode="constant")
    return found


def _smooth(space: tuple[int, ...], scale: float, random: np.random.Generator) -> Array:
    """Return a smooth random field of variance 1 that varies over `scale` voxels."""
    coarse = [max(2, round(length / scale) + 2) for length in space]
    factors = [length / small for length, small in zip(space, coarse, strict=True)]
    field: Array = zoom(random.standard_normal(coarse), factors, order=3, mode="nearest", grid_mode=True)
    return np.asarray((field - field.mean()) / max(float(field.std()), 1e-12))
