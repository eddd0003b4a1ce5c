"""NIfTI files -> arrays in `[z, y, x]` order and back, with their geometry.

NIfTI and nibabel count axes x, y, z. SimpleITK and nnU-Net, and therefore segcal, give the same voxels as
`[z, y, x]`. Scores have one more axis for the classes: the first one (`[L, *S]` stored as it is) or, as NIfTI
tools do, the last.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from segcal.data.io.formats import extension_of, plain, readable
from segcal.types import Array, InputError

Spacing = tuple[float, ...]

_SAME_PLACE = 1e-3  # what may lie between two entries of affines that mean the same
_PIECE = 1 << 20


def volume_shape(path: Path) -> tuple[int, ...]:
    """Shape `[z, y, x]` (or `[y, x]`) of a volume without classes or channels, from its header."""
    return _space(_open(path))[::-1]


def space_beside_classes(path: Path, num_classes: int | None) -> tuple[int, ...]:
    """Space `(z, y, x)` of scores that no labels tell it of, from their header.

    Classes lie along the first axis if that has `num_classes` entries, else along the last if that has. Where
    `num_classes` is not known they lie along the last of four, as in most tools, if that is shorter than all others.
    """
    shape = tuple(_open(path).shape)
    axis = _axis_of(num_classes, shape, path) if num_classes is not None else _likely_axis(shape, path)
    return (shape[1:] if axis == 0 else shape[: min(axis, 3)])[::-1]


def volume_spacing(path: Path) -> Spacing:
    """The spacing of a volume without classes or channels, from its header."""
    image = _open(path)
    return _zooms(image, len(_space(image)))


def check_same_place(paths: Sequence[Path], *, of: str) -> None:
    """Raise unless all of these files have the affine of the first one, to a thousandth."""
    for path in paths[1:]:
        gap = np.abs(np.asarray(_open(path).affine) - np.asarray(_open(paths[0]).affine)).max()
        if not gap <= _SAME_PLACE:  # written so that NaN is wrong as well
            raise InputError(
                f"'{path}' and '{paths[0]}' of {of} lie in different places (affines differ), by up to {gap:.4g} "
                f"where {_SAME_PLACE} is allowed; resample one to the other"
            )


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
        compressed = extension_of(path, (".nii.gz",))
        return plain(_decompress(image.dataobj, path) if compressed else np.asanyarray(image.dataobj), path)


def _decompress(stored: Any, path: Path) -> Array:
    """The values of a compressed file, read to its end: only there does gzip compare the checksum.

    nibabel would stop at the last value, and would first set aside as much memory as a damaged header asks for.
    """
    from nibabel.volumeutils import apply_read_scaling  # noqa: PLC0415

    content = bytearray()
    with gzip.open(path) as stream:
        while piece := stream.read(_PIECE):
            content += piece
    values: Array = np.ndarray(stored.shape, stored.dtype, buffer=content, offset=stored.offset, order="F")
    scaled: Array = apply_read_scaling(values, stored.slope, stored.inter)
    return scaled


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


def _axis_of(num_classes: int, shape: tuple[int, ...], path: Path) -> int:
    """The first axis if it has `num_classes` entries, else the last if that has."""
    for axis in _possible_axes(shape):
        if shape[axis] == num_classes:
            return axis
    raise InputError(
        f"'{path}' must have num_classes={num_classes} entries along the first or the last of 3 or 4 NIfTI axes, "
        f"got {shape}; set num_classes or mend the scores"
    )


def _likely_axis(shape: tuple[int, ...], path: Path) -> int:
    """The last axis, where nothing speaks against it."""
    last = len(shape) - 1
    if _possible_axes(shape) == (last,) or (last == 3 and shape[last] < min(shape[:last])):
        return last
    raise InputError(
        f"the class axis of '{path}' must be known, got NIfTI shape {shape}, which does not tell it, and no labels; "
        "give num_classes, or name the classes in segcal.toml"
    )


def _possible_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) in (3, 4):
        return (0, len(shape) - 1)
    return (4,) if len(shape) == 5 and shape[3] == 1 else ()  # ITK puts vectors along the fifth axis


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
