"""Volumes with labels, read from NIfTI pairs: what the readers of the medical data sets share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.datasets.files import by_name
from segcal.data.io.nifti import check_same_place, read_volume
from segcal.types import Array, InputError

_NIFTI = (".nii.gz", ".nii")


class Volume(NamedTuple):
    """One volume: intensities `[z, y, x]` as stored, labels `[z, y, x]` in 0..L-1 (uint8), and the voxel size."""

    name: str
    image: Array
    labels: Array
    spacing: tuple[float, ...]


@dataclass(frozen=True)
class VolumeFolder:
    """The volumes of a data set, each read when it is asked for.

    Args:
        files: Image and labels of each volume, by its name.
        classes: Names of the classes, background first.
        values: The value that stands for each class in the files; None where they are 0..L-1.
        stray: Whether other values in the files count as background; they are an error if not.
    """

    files: Mapping[str, tuple[Path, Path]]
    classes: tuple[str, ...]
    values: tuple[int, ...] | None = None
    stray: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The volumes' names, in order."""
        return tuple(self.files)

    def read(self, name: str) -> Volume:
        """Read one volume and check that image and labels cover the same voxels."""
        image_file, label_file = self.files[name]
        image, spacing = read_volume(image_file)
        stored, _ = read_volume(label_file)
        if spacing is None:
            raise InputError(f"'{image_file}' must state the size of its voxels; write it as NIfTI with a valid header")
        if image.shape != stored.shape:
            raise InputError(
                f"'{label_file}' must have the shape of its image, {image.shape} in z, y, x order, got {stored.shape}"
            )
        check_same_place((image_file, label_file), of=f"volume '{name}'")
        values = range(len(self.classes)) if self.values is None else self.values
        return Volume(name, image, classes_of(stored, values, stray=self.stray, path=label_file), spacing)


def classes_of(stored: Array, values: Sequence[int], *, stray: bool = False, path: Path | str = "labels") -> Array:
    """Return stored label values as classes: the place of each value in `values`.

    Labels may be stored as floating-point numbers; a fraction is an error in any case.

    >>> classes_of(np.array([0.0, 21.0, 182.0]), (0, 21, 182)).tolist()
    [0, 1, 2]
    """
    whole = np.rint(stored).astype(np.int64)
    if not np.array_equal(whole, stored):
        raise InputError(f"labels must be whole numbers, got fractions in '{path}'; resample labels to the nearest")
    found = np.unique(whole)
    if (unknown := np.setdiff1d(found, values)).size and not stray:
        raise InputError(f"labels must be among {_listed(values)}, got {unknown[0]} in '{path}'")
    place = {value: k for k, value in enumerate(values)}
    table = np.array([place.get(int(value), 0) for value in found], dtype=np.uint8)
    classes: Array = table[np.searchsorted(found, whole)]
    return classes


def pairs_of(images: Path, labels: Path, *, hint: str) -> dict[str, tuple[Path, Path]]:
    """Return image and labels of each volume of two folders, by name; every image must have labels."""
    found = [by_name(folder, _NIFTI, hint) for folder in (images, labels)]
    for name in found[0]:
        if name not in found[1]:
            raise InputError(f"'{labels}' must hold the labels of '{name}', and does not; {hint}")
    return {name: (found[0][name], found[1][name]) for name in found[0]}


def _listed(values: Sequence[int]) -> str:
    contiguous = list(values) == list(range(values[0], values[0] + len(values)))
    return f"{values[0]}..{values[-1]}" if contiguous else ", ".join(map(str, values))
