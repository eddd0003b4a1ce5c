"""Stage `prepare`: NIfTI volumes -> small files that the later stages read without any NIfTI library."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from experiments.lpba40.prepare import around, opened, read_volume
from experiments.lpba40.preprocessing import equalised
from experiments.multi_atlas.presets import Fold, Preset, folds_of
from segcal.files import staged_file
from segcal.fusion.registration import Volume, decoded, encoded, normalised
from segcal.types import InputError

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
    count = sum(preset.sizes)
    volumes = opened(preset.data, data, template, count)
    if len(volumes.names) < count:
        raise InputError(f"'{data}' must hold at least {count} volumes, got {len(volumes.names)}")
    for name in volumes.names[:count]:
        path = out / VOLUMES / f"{name}.npz"
        if path.exists():
            continue
        volume = read_volume(volumes, name, template, out / "affines")
        image = volume.image.astype(np.float32)
        grey = normalised(image) if template is None else equalised(image, image > 0)
        box = around((grey > 0) | (volume.labels > 0), _MARGIN)
        with staged_file(path) as target:
            spacing = np.array(volume.spacing)
            np.savez_compressed(target, image=encoded(grey[box]), labels=volume.labels[box], spacing=spacing)
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
