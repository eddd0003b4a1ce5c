"""NIfTI files -> arrays in `[z, y, x]` order and back, with their geometry.

NIfTI and nibabel count axes x, y, z. SimpleITK and nnU-Net, and therefore segcal, give the same voxels as
`[z, y, x]`. Scores have one more axis for the classes: the first one (`[L, *S]` stored as it is) or, as NIfTI
tools do, the last.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from segcal.data.formats import plain, readable
from segcal.types import Array, InputError

Spacing = tuple[float, ...]


def volume_shape(path: Path) -> tuple[int, ...]:
    """Shape `[z, y, x]` (or `[y, x]`) of a volume without classes or channels, from its header."""
    return _space(_open(path))[::-1]


def read_volume(path: Path) -> tuple[Array, Spacing]:
    """A volume `[z, y, x]` and its spacing in the same order."""
    image = _open(path)
    space = _space(image)
    return _data(image, path).T.reshape(space[::-1]), _zooms(image, len(space))


def read_channels(path: Path, space: tuple[int, ...]) -> tuple[Array, Spacing]:
    """Scores or image `[L, z, y, x]` over `space` = (z, y, x), and the spacing."""
    image = _open(path)
    axis = _class_axis(image.shape, space, path)
    channels = np.moveaxis(_data(image, path).T, -1 - axis, 0)
    return channels.reshape(channels.shape[0], *space), _spacing_beside_classes(image, axis, len(space))


def channel_count(path: Path, space: tuple[int, ...]) -> int:
    """How many classes or channels a file over `space` = (z, y, x) has, from its header."""
    shape = _open(path).shape
    return int(shape[_class_axis(shape, space, path)])


def write_channels(target: Path, array: Array, like: Path) -> None:
    """Write scores `[L, z, y, x]` with the affine, the zooms and the class axis of the file `like`."""
    source = _open(like)
    axis = _class_axis(source.shape, array.shape[1:], like)
    shape = (*source.shape[:axis], array.shape[0], *source.shape[axis + 1 :])
    data = array.T if axis else np.moveaxis(array, 0, -1).T
    _save(target, data.reshape(shape), source, source.header.copy())


def write_volume(target: Path, array: Array, like: Path) -> None:
    """Write a map `[z, y, x]` with the geometry of `like`, a volume or scores over the same space."""
    source = _open(like)
    if _space(source) == array.shape[::-1]:
        _save(target, array.T.reshape(source.shape), source, source.header.copy())
    else:
        _class_axis(source.shape, array.shape, like)  # raises where `like` covers another space
        _save(target, array.T, source, None)


def _open(path: Path) -> Any:
    try:
        import nibabel  # noqa: PLC0415  (an optional dependency)
    except ImportError as error:
        raise InputError(
            f"NIfTI files such as '{path}' need nibabel, which is not installed; pip install segcal[medical]"
        ) from error
    with readable(path):
        return nibabel.load(path, mmap="r")


def _data(image: Any, path: Path) -> Array:
    """The values, memory-mapped where the file is neither compressed nor scaled."""
    with readable(path):
        return plain(np.asanyarray(image.dataobj), path)


def _space(image: Any) -> tuple[int, ...]:
    """Shape in NIfTI order; axes of length one after the third (time, vector) are no space."""
    shape = tuple(image.shape)
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def _class_axis(shape: tuple[int, ...], space: tuple[int, ...], path: Path) -> int:
    """The axis of the classes: the first if that fits, else the last (ITK puts an axis of one before it)."""
    nifti_space = tuple(space[::-1])
    if tuple(shape[1:]) == nifti_space:
        return 0
    before, last = tuple(shape[:-1]), len(shape) - 1
    if before[: len(space)] == nifti_space and all(size == 1 for size in before[len(space) :]):
        return last
    raise InputError(
        f"'{path}' must have NIfTI shape (L, {_list(nifti_space)}) or ({_list(nifti_space)}, L) "
        f"to match its labels, got {tuple(shape)}; resample one to the other"
    )


def _list(sizes: tuple[int, ...]) -> str:
    return ", ".join(str(size) for size in sizes)


def _zooms(image: Any, dims: int) -> Spacing:
    return tuple(float(zoom) for zoom in image.header.get_zooms()[:dims][::-1])


def _spacing_beside_classes(image: Any, axis: int, dims: int) -> Spacing:
    if axis:
        return _zooms(image, dims)
    # Where classes come first, the zooms of the header belong to (L, x, y); the affine still maps x, y and z.
    sizes = np.sqrt((np.asarray(image.affine)[:3, :3] ** 2).sum(axis=0))
    return tuple(float(size) for size in sizes[:dims][::-1])


def _save(target: Path, data: Array, source: Any, header: Any) -> None:
    import nibabel  # noqa: PLC0415

    if header is not None:
        header.set_data_dtype(np.float32)
        header.set_intent("none")  # labels may be marked as labels, and these are not
        header["cal_min"] = header["cal_max"] = 0  # the display range was that of the other values
    image = type(source)(data.astype(np.float32), source.affine, header)
    if header is None:
        image.header.set_xyzt_units(*source.header.get_xyzt_units())
    nibabel.save(image, target)
