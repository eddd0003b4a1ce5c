"""Interface of the file formats, errors in one sentence, and arrays too large for memory.

Arrays have segcal's order: scores `[L, *S]`, labels and maps `[*S]`, images `[C, *S]`, with `*S` = `H W` or `D H W`.
"""

from __future__ import annotations

import errno
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from segcal.files import refuse_special
from segcal.text import warn_caller
from segcal.types import Array, InputError

Content: TypeAlias = Literal["scores", "labels", "image"]
Key: TypeAlias = Literal["logits", "probabilities", "labels", "image"]
Shape: TypeAlias = tuple[int, ...]
Spacing: TypeAlias = tuple[float, ...]

IN_MEMORY = 1 << 28
"""Bytes that an array decompressed from a file may have in memory; a larger one goes to a temporary file."""

PIECE = 1 << 20
"""Bytes copied at a time."""

LARGEST = 1 << 37
"""Bytes of the largest array that is decompressed (128 GiB): 57 classes in float32 of a volume of 800 voxels a side."""

_NOISE = 1e-3
"""Distance from a whole number that scaling may leave in a label of a floating point file."""

_NOT_OF_THE_FILE = (errno.EACCES, errno.EIO, errno.EMFILE, errno.ENFILE)
"""Reasons for which the system refuses to read a file that may be whole."""

_DEFLATE = 1032
_TOO_LONG = "it holds more than its header declares"


Write: TypeAlias = Callable[[int, Array], None]
"""Writes slices of the first spatial axis, from a position on: `[L, rows, ...]` or `[rows, ...]`."""


class Opened(NamedTuple):
    """An array of which the header has been read: its shape in segcal's order, and a function that reads the values."""

    shape: Shape
    load: Callable[[], Array]


@dataclass(frozen=True)
class ArrayFile:
    """A file of one format, read or to be written. A subclass implements `_open`, and what else its format can hold.

    Args:
        path: Where it lies.
    """

    path: Path
    extensions: ClassVar[dict[Content, tuple[str, ...]]]
    """The extensions by which it is known as a file of scores, of labels or of an image."""
    has_geometry: ClassVar[bool] = False
    """True if files record an affine that places them in the world."""
    is_folder: ClassVar[bool] = False
    """True if what looks like a file is a folder."""

    def identity(self) -> str:
        """Return what changes when the content does: size, time of modification and, of a local file, of any change.

        Whoever copies or unpacks a file may set its time of modification, to the same for all, but not that of the
        change itself.
        """
        with readable(self.path):
            found = self.path.stat()
        return f"{found.st_size} {found.st_mtime_ns} {getattr(found, 'st_ctime_ns', 0)}"

    def shape(self, key: Key, space: Shape | None = None, num_classes: int | None = None) -> Shape:
        """Return the shape of the array, from the header.

        Args:
            key: What it holds: labels `[*S]`, scores `[L, *S]`, or an image `[C, *S]` or `[*S]`.
            space: `*S` where it is known; images need it.
            num_classes: L where it is known.
        """
        with readable(self.path):
            return self._open(key, space, num_classes).shape

    def read(self, key: Key, space: Shape | None = None) -> Array:
        """Return the array, perhaps memory-mapped; arguments as in `shape`. Scores of NIfTI files need `space`, too."""
        with readable(self.path), np.errstate(over="ignore"):  # of a size that a damaged header declares
            return plain(self._open(key, space, None).load(), self.path)

    def _open(self, key: Key, space: Shape | None, num_classes: int | None) -> Opened:
        raise NotImplementedError

    def spacing(self, dims: int) -> Spacing | None:
        """Return the size of a pixel along each of `dims` spatial axes, where the header has it."""
        return None

    def create(self, key: Key, shape: Shape, dtype: str, *, like: Path | None) -> AbstractContextManager[Write]:
        """Write the file slab by slab: scores, or labels or a map `[*S]`. `like` is a file of the same geometry."""
        raise NotImplementedError


def slab_writer(
    file: IO[bytes], offset: int, shape: Shape, dtype: str, *, classes: bool, classes_last: bool = False
) -> Write:
    """Return a function that writes an array into a file slab by slab, so that it is never whole in memory.

    Args:
        file: Open for writing, and seekable.
        offset: Where the array begins.
        shape: `[L, *S]` or `[*S]`.
        dtype: Of the file.
        classes: Whether the first axis is that of the classes.
        classes_last: Whether the file has the classes as its fastest axis, `[*S, L]`.
    """
    rows, size = shape[1 if classes else 0], math.prod(shape) * np.dtype(dtype).itemsize

    def write(start: int, values: Array) -> None:
        # a slab has one piece in the file for each class, unless it is the whole array
        by_class = classes and not classes_last and values.shape[1] < rows
        parts = values if by_class else (np.moveaxis(values, 0, -1) if classes_last else values)[None]
        row_bytes = size // rows // len(parts)
        for k, part in enumerate(parts):
            file.seek(offset + (k * rows + start) * row_bytes)
            file.write(np.ascontiguousarray(part, dtype).data)

    return write


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn any failure to read `path` into one sentence; refuse devices and pipes before they are opened.

    Damaged bytes make zipfile, zlib, gzip, numpy, Pillow and nibabel raise almost anything, so all is caught.
    """
    try:
        if not hasattr(path, "fs"):  # what an object store holds is no device
            refuse_special(path)
        yield
    except (InputError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise InputError(f"'{path}' does not exist any more; restore it or open the folder again") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NOT_OF_THE_FILE:
            raise InputError(
                f"'{path}' cannot be read ({error.strerror}); check its permissions, the disk and the limit of files"
            ) from error
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        if "pickle" in str(error) or "Python objects" in reason:
            raise InputError(
                f"'{path}' must hold a plain array of numbers, got pickled objects, which are never loaded "
                "as they can run code; save a numeric array with np.save or np.savez"
            ) from error
        kind = ".nii.gz" if path.name.lower().endswith(".nii.gz") else path.suffix.lower()
        raise InputError(
            f"'{path}' must be a readable {kind} file, got a damaged or incomplete one ({reason}); write it again"
        ) from error


def plain(array: Array, path: Path) -> Array:
    """Return `array` in the machine's byte order; raise unless it holds numbers of at most 64 bits."""
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise InputError(
            f"'{path}' must hold plain numbers of at most 64 bits, got {array.dtype}; convert it to float32 or int64"
        )
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def whole_numbers(array: Array, path: Path) -> Array:
    """Return labels as signed integers or uint8; floats are accepted where every value is nearly a whole number.

    Files that store labels as scaled integers hold values such as 1.0000152: these are rounded, with a warning.
    """
    if array.dtype.kind != "f":
        small = array.dtype.kind == "i" or array.dtype.itemsize == 1
        if array.dtype == np.uint64 and array.size and array.max() >= 2**63:
            raise InputError(f"labels must be below 2^63, got {array.max()} in '{path}'; correct them")
        return (array.astype(np.uint8) if array.dtype.kind == "b" else array) if small else array.astype(np.int64)
    rounded = np.round(array)
    with np.errstate(invalid="ignore"):  # NaN and infinity are refused
        near = np.abs(array - rounded) <= _NOISE
    fractional = ~(near & (np.abs(array) < np.float64(2**53)))  # beyond half precision
    if fractional.any():
        at = tuple(int(i) for i in np.argwhere(fractional)[0])
        raise InputError(
            f"labels must be whole numbers, got {array[at]} at {at} in '{path}'; "
            "write the labels as integers (and resample labels with nearest neighbours); shares of several raters "
            "become one case per rater with segcal.rater_cases"
        )
    if (array != rounded).any():
        warn_caller(
            f"labels in '{path.parent}' are not exactly whole numbers, as after scaling; they are rounded, by at most "
            f"{_NOISE}"
        )
    return rounded.astype(np.int64)


def check_declared(shape: Shape, dtype: np.dtype[Any], path: Path, *, compressed: bool) -> None:
    """Raise if a file cannot hold the array that its header declares, before memory is taken.

    Deflate, which .npz and .nii.gz use, makes at most 1032 bytes of one.
    """
    size = math.prod(shape) * dtype.itemsize  # of Python's integers, which do not overflow
    if min(shape, default=0) < 0 or size > path.stat().st_size * (_DEFLATE if compressed else 1) + PIECE:
        raise ValueError(f"its header declares an array of shape {shape}, which cannot be in a file of its size")
    refuse_large(size, path, LARGEST, "arrays that are read", "split the volume")


def refuse_large(size: int, path: Path, most: int, what: str, remedy: str) -> None:
    """Raise if a file has, or its header declares, more bytes than what is read may have."""
    if size > most:
        raise InputError(f"{what} must have at most {most >> 30} GiB, got {size >> 30} GiB in '{path}'; {remedy}")


def decompressed(stream: IO[bytes], shape: Shape, dtype: np.dtype[Any], offset: int, order: Literal["C", "F"]) -> Array:
    """Return the array behind `offset` bytes of a compressed stream; a large one is mapped from a temporary file.

    The stream is read to its end, where checksums are compared. Memory grows with the bytes that are really there, not
    with what a damaged header promises; a stream that is longer than promised is refused, since it may have no end.
    """
    content, size = bytearray(), offset + math.prod(shape) * dtype.itemsize
    while piece := stream.read(PIECE):
        content += piece
        if len(content) > size + PIECE:
            raise ValueError(_TOO_LONG)
        if len(content) > IN_MEMORY:
            break
    else:
        return np.ndarray(shape, dtype, buffer=content, offset=offset, order=order)
    with tempfile.TemporaryFile() as file:  # the map outlives the file, whose space is freed with it
        file.write(content)
        while piece := stream.read(PIECE):
            file.write(piece)
            if file.tell() > size + PIECE:
                raise ValueError(_TOO_LONG)
        file.flush()
        mapped: Array = np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape, order=order)
    return mapped
