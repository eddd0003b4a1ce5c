"""Zarr (version 3; version 2 and OME-Zarr are read): a folder of compressed chunks, on disk or behind an fsspec URL.

Arrays of OME-Zarr are those of the finest resolution, with their spacing; a time axis must have length one. What is
written is a plain array `[L, *S]` or `[*S]` of version 3.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from segcal.data.io import base
from segcal.data.io.base import ArrayFile, Key, Opened, Shape, Spacing, Write, readable, refuse_large
from segcal.files import read_text, refuse_special
from segcal.types import Array, InputError, extra

_END = (".zarr",)
_CHUNK = {2: (128, 256), 3: (8, 128, 128)}
"""Pixels of a chunk along each spatial axis; slabs begin at multiples of 8, so that most chunks are written once."""

_LARGEST_CHUNK = 1 << 31
"""Bytes of the largest chunk, packed or not, which is read as a whole."""
_SPACE = ("z", "y", "x")
_METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")


class Zarr(ArrayFile):
    """An array, or the finest resolution of an OME-Zarr image."""

    extensions = {"scores": _END, "labels": _END, "image": _END}  # noqa: RUF012
    is_folder = True

    def identity(self) -> str:
        """Return a hash of names, sizes and times of all chunks."""
        if hasattr(self.path, "fs"):  # behind a URL
            url = cast(Any, self.path)
            found = url.fs.find(url.path, detail=True).values()
            entries = sorted(repr(sorted(entry.items(), key=repr)) for entry in found)
        else:
            stats = ((file.relative_to(self.path), file.stat()) for file in self.path.rglob("*") if file.is_file())
            entries = sorted(f"{name} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}" for name, stat in stats)
        return hashlib.sha256("\n".join(entries).encode("utf-8", "surrogateescape")).hexdigest()[:32]

    def _open(self, key: Key, space: Shape | None, num_classes: int | None) -> Opened:
        """Read the metadata; chunks are decompressed in their own precision, of a large array to a temporary file."""
        array, axes, _ = _opened(self.path, channels=key != "labels")

        def load() -> Array:
            _refuse_special_chunks(self.path)
            return _loaded(array, axes)

        return Opened(tuple(int(array.shape[axis]) for axis in axes), load)

    def spacing(self, dims: int) -> Spacing | None:
        """Return the spacing of an OME-Zarr image; arrays have none."""
        return _opened(self.path, channels=True)[2]

    @contextmanager
    def create(self, key: Key, shape: Shape, dtype: str, *, like: Path | None) -> Iterator[Write]:
        """Write an array chunk by chunk."""
        classes = key != "labels"
        space = shape[1:] if classes else shape
        pixels = tuple(min(size, most) for size, most in zip(space, _CHUNK[len(space)], strict=True))
        chunks = (shape[0], *pixels) if classes else pixels
        array = _zarr().create_array(store=str(self.path), shape=shape, chunks=chunks, dtype=dtype, overwrite=True)

        def write(start: int, values: Array) -> None:
            rows = slice(start, start + values.shape[1 if classes else 0])
            array[(slice(None), rows) if classes else rows] = np.asarray(values, dtype)

        yield write


def _loaded(array: Any, axes: tuple[int, ...]) -> Array:
    """Return an array `[C, *S]` or `[*S]` of some of the axes of an array on disk, in this order."""
    shape = tuple(int(array.shape[axis]) for axis in axes)
    size = math.prod(shape) * array.dtype.itemsize
    if size <= base.IN_MEMORY or not shape:
        return np.ascontiguousarray(_part(array, axes, {}))
    file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (the map outlives the file, whose space is freed with it)
    with file:
        file.truncate(size)
        whole: Array = np.memmap(file, array.dtype, "r+", shape=shape)
        first = max(0, len(shape) - 3)
        step = max(1, base.IN_MEMORY * shape[first] // size)
        for start in range(0, shape[first], step):
            rows = slice(start, start + step)
            whole[(slice(None),) * first + (rows,)] = _part(array, axes, {axes[first]: rows})
        cast(Any, whole).flush()
        mapped: Array = np.memmap(file, array.dtype, "r", shape=shape)
        return mapped


def _part(array: Any, axes: tuple[int, ...], rows: Mapping[int, slice]) -> Array:
    """Return some rows of an array on disk, with its axes chosen and put in order."""
    index = [rows.get(axis, slice(None)) if axis in axes else 0 for axis in range(array.ndim)]
    kept = sorted(axes)
    return np.transpose(array[tuple(index)], [kept.index(axis) for axis in axes])


def _opened(path: Path, *, channels: bool) -> tuple[Any, tuple[int, ...], Spacing | None]:
    """Open an array, or the finest resolution of an OME-Zarr image; return its axes in order, and its spacing."""
    zarr = _zarr()
    with readable(path):
        _refuse_special_metadata(path)
        found = zarr.open(str(path), mode="r", storage_options=getattr(path, "storage_options", None) or None)
        if isinstance(found, zarr.Array):
            return _checked(found, path), tuple(range(found.ndim)), None
        about = _multiscales(found.attrs, path)
        scale = about["datasets"][0]
        _refuse_special_metadata(path / scale["path"])
        array = _checked(found[scale["path"]], path)
        return array, *_ordered(array, about, scale, path, channels=channels)


def _refuse_special_metadata(folder: Path) -> None:
    """Raise if metadata of a local store are a device, a pipe or larger than any, before zarr reads them as a whole."""
    for file in (folder / name for name in _METADATA if not hasattr(folder, "fs")):
        if file.exists():
            read_text(file)


def _refuse_special_chunks(path: Path) -> None:
    """Raise if a file of a local store is a device, a pipe or too large, before zarr reads it as a whole."""
    for file in path.rglob("*") if not hasattr(path, "fs") else ():
        refuse_special(file)
        if not file.is_dir():
            _refuse_large_chunk(file.stat().st_size, file)
        elif file.is_symlink():
            raise InputError(f"'{file}' must be a folder, got a link to one; put its content there")


def _checked(array: Any, path: Path) -> Any:
    """Return an array of a store; raise if it, or one of its chunks, declares more than memory may be taken for."""
    refuse_large(math.prod(array.shape) * array.dtype.itemsize, path, base.LARGEST, "arrays that are read", "split it")
    _refuse_large_chunk(math.prod(array.shards or array.chunks) * array.dtype.itemsize, path)
    return array


def _refuse_large_chunk(size: int, path: Path) -> None:
    refuse_large(size, path, _LARGEST_CHUNK, "chunks", "write smaller ones")


def _multiscales(attributes: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the metadata of an OME-Zarr image, of version 0.5 (under "ome") or 0.4."""
    content = attributes.get("ome", attributes)
    if not content.get("multiscales"):
        raise InputError(
            f"'{path}' must be a Zarr array or an OME-Zarr image, got a group without multiscales; give the array "
            "itself"
        )
    return dict(content["multiscales"][0])


def _ordered(
    array: Any, about: Mapping[str, Any], scale: Mapping[str, Any], path: Path, *, channels: bool
) -> tuple[tuple[int, ...], Spacing | None]:
    axes = [axis if isinstance(axis, str) else axis["name"] for axis in about["axes"]]
    if len(set(axes)) < len(axes) or len(axes) != array.ndim:
        raise InputError(
            f"'{path}' must name each axis once, got {axes} of an array of shape {array.shape}; correct it"
        )
    space = sorted((k for k, name in enumerate(axes) if name in _SPACE), key=lambda k: _SPACE.index(axes[k]))
    channel = [k for k, name in enumerate(axes) if name == "c" and (channels or array.shape[k] > 1)]
    others = [k for k in range(len(axes)) if k not in space and k not in channel]
    if any(array.shape[k] > 1 for k in others) or (channel and not channels):
        raise InputError(
            f"'{path}' must have one time and, for labels, one channel, got axes {''.join(axes)} of shape "
            f"{array.shape}; write each as an array of its own"
        )
    if len(space) == 3 and array.shape[space[0]] == 1:  # OME-Zarr gives pictures a z axis
        space = space[1:]
    transforms = scale.get("coordinateTransformations", ())
    steps = next((step["scale"] for step in transforms if step.get("type") == "scale"), None)
    spacing = None if steps is None else tuple(float(steps[k]) for k in space)
    return (*channel, *space), spacing


def _zarr() -> Any:
    return extra("zarr", "Zarr files need zarr", "store")
