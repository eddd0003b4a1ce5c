"""Simulated volumes to try multi-atlas segmentation on: one anatomy, deformed differently for each subject."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.ndimage import gaussian_filter, map_coordinates

from segcal.fusion.registration import Volume, normalised
from segcal.types import Array

LABELS = (1, 2, 3)
_INTENSITY = np.array([0.2, 0.9, 0.55, 0.75])


def simulated_volumes(
    count: int,
    shape: Sequence[int] = (28, 36, 30),
    *,
    seed: int = 0,
    deformation: float = 2.0,
    noise: float = 0.12,
    spacing: tuple[float, ...] = (1.0, 1.0, 1.0),
) -> list[Volume]:
    """Return subjects with three structures each: a body with a core, and a neighbour of similar intensity.

    Args:
        count: How many subjects.
        shape: Voxels along each axis.
        seed: Random seed. The first subjects of a larger population are those of a smaller one.
        deformation: Standard deviation of the displacement, in voxels.
        noise: Standard deviation of the noise, where the structures differ by about 0.2 to 0.4.
        spacing: Size of a voxel in mm.
    """
    return [_subject(tuple(shape), np.random.default_rng([seed, k]), deformation, noise, spacing) for k in range(count)]


def _subject(
    shape: tuple[int, ...], random: np.random.Generator, deformation: float, noise: float, spacing: tuple[float, ...]
) -> Volume:
    places = np.stack(np.meshgrid(*(np.arange(length, dtype=np.float64) for length in shape), indexing="ij"))
    places += np.stack([deformation * _smooth(shape, random, min(shape) / 6) for _ in shape])
    labels = map_coordinates(_anatomy(shape), places, order=0, mode="nearest").astype(np.uint8)
    shading = 1 + 0.1 * _smooth(shape, random, min(shape) / 3)
    texture = gaussian_filter(_INTENSITY[labels] * shading, 0.6) + noise * random.normal(size=shape)
    return Volume(normalised(texture), labels, spacing)


def _anatomy(shape: tuple[int, ...]) -> Array:
    """An ellipsoid (1) with a core (2), and a second ellipsoid (3) beside it."""
    grid = np.stack(np.meshgrid(*(np.linspace(-1, 1, length) for length in shape), indexing="ij"))
    middle, side = np.zeros(len(shape)), np.zeros(len(shape))
    middle[1], side[1] = -0.25, 0.45

    def ball(centre: Array, radius: float) -> Array:
        found: Array = (((grid.T - centre) / radius) ** 2).sum(axis=-1).T < 1
        return found

    labels = np.zeros(shape, np.uint8)
    labels[ball(side, 0.35)] = 3
    labels[ball(middle, 0.5)] = 1
    labels[ball(middle, 0.22)] = 2
    return labels


def _smooth(shape: tuple[int, ...], random: np.random.Generator, width: float) -> Array:
    """A smooth random field of standard deviation 1."""
    field = gaussian_filter(random.normal(size=shape), width, mode="wrap")
    scaled: Array = field / field.std()
    return scaled
