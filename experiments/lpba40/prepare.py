"""Read a data set once and write each volume as a small npz file: equalised image and labels, cropped to the brain.

Everything after this stage needs neither nibabel nor SimpleITK.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.datasets.hippocampus import open_hippocampus
from experiments.datasets.lpba40 import SUBJECTS, open_lpba40
from experiments.datasets.mouse_brain import open_mouse_brain
from experiments.datasets.volumes import Volume, VolumeFolder, classes_of
from experiments.lpba40.preprocessing import Located, affine_between, equalised, read_located, resampled
from experiments.lpba40.recipes import Data
from segcal.files import MARKER, staged_folder, write_json
from segcal.types import Array, InputError

_MARGIN = 4  # voxels around the brain: more than Boundary reaches


def prepare(data: Data, source: Path, root: Path, *, template: Path | None = None) -> None:
    """Write the volumes of a data set below `root`, unless they are there.

    Args:
        data: Which data set.
        source: Its folder.
        root: Where the prepared volumes of all data sets go.
        template: NIfTI file that LPBA40 is aligned with, such as the skull-stripped MNI152 T1; the transforms are
            cached beside the prepared volumes.
    """
    if (root / data / MARKER).exists():
        print(f"{data}: prepared already")
        return
    volumes = opened(data, source, template)
    shapes = []
    with staged_folder(root / data) as folder:
        for name in volumes.names:
            volume = read_volume(volumes, name, template, root / "affines")
            shapes.append(_write(folder / f"{name}.npz", volume, whole=data == "hippocampus"))
        content = {"names": volumes.names, "classes": volumes.classes, "shapes": shapes}
        write_json(folder / MARKER, {"format": 1, **content})
    size = sum(path.stat().st_size for path in (root / data).iterdir())
    print(f"{data}: {len(volumes.names)} volumes prepared, {size / 1e6:.1f} MB")


def opened(data: Data, source: Path, template: Path | None, count: int | None = None) -> VolumeFolder:
    """Return the volumes of a data set, which must have the first `count` of LPBA40 (all by default)."""
    if (data == "lpba40") != (template is not None):
        raise InputError("--template is needed for lpba40, which is aligned with it, and for no other data set")
    if data == "lpba40":
        return open_lpba40(source, subjects=SUBJECTS[:count])
    return open_hippocampus(source) if data == "hippocampus" else open_mouse_brain(source)


def read_volume(volumes: VolumeFolder, name: str, template: Path | None, cache: Path) -> Volume:
    """Read a volume, on the grid of a template if there is one; transforms are kept in the folder `cache`."""
    if template is None:
        return volumes.read(name)
    image_file, label_file = volumes.files[name]
    transform, onto = affine_between(template, image_file, cache=cache), read_located(template)
    image = resampled(read_located(image_file), onto, transform)
    stored = read_located(label_file)
    classes = classes_of(stored.values, volumes.values or (), stray=volumes.stray, path=label_file)
    labels = resampled(Located(classes, stored.affine), onto, transform, nearest=True)
    spacing = tuple(float(length) for length in np.linalg.norm(onto.affine[:3, :3], axis=0)[::-1])
    return Volume(name, image, labels.astype(np.uint8), spacing)


def _write(path: Path, volume: Volume, *, whole: bool) -> tuple[int, ...]:
    """Write an equalised volume, cropped to the brain unless `whole`; its shape."""
    brain = np.ones(volume.image.shape, dtype=bool) if whole else volume.image > 0
    image = np.rint(255 * equalised(volume.image, brain)).astype(np.uint8)
    box = (slice(None),) * 3 if whole else around(brain | (volume.labels > 0), _MARGIN)
    arrays = {"image": image[box], "labels": volume.labels[box], "spacing": np.array(volume.spacing)}
    np.savez_compressed(path, **arrays)
    return tuple(arrays["labels"].shape)


def around(mask: Array, margin: int) -> tuple[slice, ...]:
    """Return the box that holds a mask with a margin, inside the volume."""
    places = np.nonzero(mask)
    return tuple(
        slice(max(int(where.min()) - margin, 0), min(int(where.max()) + 1 + margin, length))
        for where, length in zip(places, mask.shape, strict=True)
    )
