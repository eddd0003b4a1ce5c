"""Stage `prepare`: NIfTI volumes -> small files that the later stages read without any NIfTI library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from experiments.datasets.lpba40 import SUBJECTS, open_lpba40
from experiments.datasets.volumes import VolumeFolder
from experiments.lpba40.prepare import aligned
from experiments.lpba40.preprocessing import equalised
from experiments.multi_atlas.presets import Fold, Preset, chosen_names, folds_of
from segcal.data.io.nifti import read_volume
from segcal.files import staged_file
from segcal.fusion.registration import Volume, normalised
from segcal.fusion.warps import decoded, encoded
from segcal.types import Array, InputError

VOLUMES = "volumes"
_MARGIN = 2


def prepare(data: Path, out: Path, preset: Preset, *, template: Path | None = None) -> None:
    """Write the volumes that the protocol uses: 256 grey levels, cropped to what is not empty.

    Args:
        data: Folder of the data set.
        out: Folder of everything that is made.
        preset: Data set and split.
        template: NIfTI file that LPBA40 is aligned with, such as the skull-stripped MNI152 T1.
    """
    names, read = _source(data, out, preset, template)
    for name in names:
        path = out / VOLUMES / f"{name}.npz"
        if path.exists():
            continue
        volume = _cropped(read(name))
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


def _source(
    data: Path, out: Path, preset: Preset, template: Path | None
) -> tuple[Sequence[str], Callable[[str], Volume]]:
    """Return the names of the volumes and the function that reads one."""
    if (preset.images is None) != (template is not None):
        raise InputError("--template is needed for lpba40, which is aligned with it, and for no other data set")
    if preset.images is not None and preset.labels is not None:
        images, labels = data / preset.images, data / preset.labels
        return chosen_names(images, preset), partial(_read_nifti, images=images, labels=labels)
    assert template is not None
    folder = open_lpba40(data, subjects=SUBJECTS[: sum(preset.sizes)])
    return folder.names, partial(_read_aligned, volumes=folder, template=template, cache=out / "affines")


def _read_aligned(name: str, *, volumes: VolumeFolder, template: Path, cache: Path) -> Volume:
    """Read a volume of LPBA40 on the grid of the template, its histogram equalised inside the brain."""
    volume = aligned(volumes, name, template, cache)
    return Volume(equalised(volume.image, volume.image > 0), volume.labels.astype(np.int16), volume.spacing)


def _read_nifti(name: str, *, images: Path, labels: Path) -> Volume:
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
