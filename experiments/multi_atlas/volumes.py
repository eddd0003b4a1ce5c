"""Stage `prepare`: NIfTI volumes -> small files that the later stages read without any NIfTI library."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from experiments.multi_atlas.presets import Fold, Preset, chosen_names, folds_of
from segcal.data.io.nifti import read_volume
from segcal.files import staged_file
from segcal.fusion.registration import Volume, normalised
from segcal.fusion.warps import decoded, encoded
from segcal.types import Array, InputError

VOLUMES = "volumes"
_MARGIN = 2


def prepare(data: Path, out: Path, preset: Preset) -> None:
    """Write the volumes that the protocol uses: 256 grey levels, cropped to what is not empty."""
    for name in chosen_names(data, preset):
        path = out / VOLUMES / f"{name}.npz"
        if path.exists():
            continue
        volume = _cropped(_read_nifti(name, data / preset.images, data / preset.labels))
        labels = volume.labels.astype(np.min_scalar_type(int(volume.labels.max())))
        with staged_file(path) as target:
            np.savez_compressed(target, image=encoded(volume.image), labels=labels, spacing=np.array(volume.spacing))
    print(f"{len(list((out / VOLUMES).glob('*.npz')))} volumes in '{out / VOLUMES}'")


def prepared_folds(out: Path, preset: Preset) -> list[Fold]:
    """The folds of the volumes that were prepared."""
    names = sorted(path.stem for path in (out / VOLUMES).glob("*.npz"))
    if len(names) != sum(preset.sizes):
        raise InputError(
            f"'{out / VOLUMES}' must hold {sum(preset.sizes)} volumes, got {len(names)}; run the stage `prepare` first"
        )
    return folds_of(names, preset)


def reader(out: Path) -> partial[Volume]:
    """Return the function that reads a prepared volume by name."""
    return partial(read_prepared, folder=out / VOLUMES)


def read_prepared(name: str, *, folder: Path) -> Volume:
    """Read a prepared volume."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as content:
        spacing = tuple(float(size) for size in content["spacing"])
        return Volume(decoded(content["image"]), content["labels"], spacing)


def label_set(out: Path) -> list[int]:
    """The labels of all volumes, without the background 0."""
    found: set[int] = set()
    for path in sorted((out / VOLUMES).glob("*.npz")):
        found.update(np.unique(read_prepared(path.stem, folder=out / VOLUMES).labels).tolist())
    return sorted(found - {0})


def _read_nifti(name: str, images: Path, labels: Path) -> Volume:
    image, spacing = read_volume(images / f"{name}.nii.gz")
    truth, _ = read_volume(labels / f"{name}.nii.gz")
    if image.shape != truth.shape:
        raise InputError(f"the image and the labels of '{name}' must have one shape, got {image.shape}, {truth.shape}")
    whole = np.rint(truth)
    if np.abs(whole - truth).max() > 1e-3 or whole.min() < 0:
        raise InputError(f"the labels of '{name}' must be whole numbers from 0, got {np.unique(truth)[:5]}")
    sizes = tuple(spacing or (1.0,) * image.ndim)
    return Volume(normalised(np.asarray(image, np.float32)), whole.astype(np.int16), sizes)


def _cropped(volume: Volume) -> Volume:
    """Without the borders in which the image is 0, as around skull-stripped brains."""
    box = _box((volume.image > 0) | (volume.labels > 0))
    return Volume(volume.image[box], volume.labels[box], volume.spacing)


def _box(kept: Array) -> tuple[slice, ...]:
    found = []
    for axis in range(kept.ndim):
        used = np.flatnonzero(kept.any(axis=tuple(other for other in range(kept.ndim) if other != axis)))
        found.append(slice(max(0, used[0] - _MARGIN), used[-1] + 1 + _MARGIN))
    return tuple(found)
