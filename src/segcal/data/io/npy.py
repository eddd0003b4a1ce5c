"""NumPy's `.npy`: one array, memory-mapped."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from segcal.data.io.base import Format, Key, Shape, Stored, Writer, plain, readable
from segcal.types import Array, InputError

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000  # bytes, numpy's own limit


class Npy(Format):
    """One array without a name, which stays on disk until it is needed."""

    extensions = {"scores": (".npy",), "labels": (".npy",), "image": (".npy",)}  # noqa: RUF012

    def shape(self, path: Path, key: Key, space: Shape | None = None, *, num_classes: int | None = None) -> Shape:
        """Return the shape, from the header."""
        with readable(path), path.open("rb") as file:
            return read_header(file)[0]

    def read(self, path: Path, key: Key, space: Shape | None = None) -> Stored:
        """Return the array, memory-mapped, in its own precision and range."""
        return Stored(read_npy(path))

    @contextmanager
    def create(self, path: Path, key: Key, shape: Shape, dtype: str, *, like: Path | None) -> Iterator[Writer]:
        """Write the header, then the slabs where they belong."""
        with path.open("w+b") as file:
            write_header(file, shape, dtype)
            yield Writer(file, file.tell(), shape, dtype, classes=key != "labels")


FORMAT = Npy()


def read_npy(path: Path) -> Array:
    """Return the array in `path`, memory-mapped, so that only what is looked at is read."""
    with readable(path), np.errstate(over="ignore"):  # of a size that a damaged header declares
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                _explain(path)
            file.seek(0)
            shape, fortran_order, dtype = read_header(file)
            offset = file.tell()
        if dtype.hasobject:
            raise ValueError("it has Python objects")
        order: Literal["C", "F"] = "F" if fortran_order else "C"
        return plain(np.memmap(path, dtype, "r", offset, shape, order), path)


def _explain(path: Path) -> None:
    """Raise what numpy has to say about a file that is no .npy file, such as a pickle."""
    np.load(path, allow_pickle=False).close()
    raise InputError(f"'{path}' must be a .npy file, got a .npz archive; rename it")


def read_header(file: IO[bytes]) -> tuple[Shape, bool, np.dtype[Any]]:
    """Return shape, Fortran order and dtype of the array that follows in `file`."""
    version = np.lib.format.read_magic(io.BytesIO(file.read(len(_MAGIC) + 2)))
    first = version == (1, 0)
    read: Callable[..., Any] = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    size = file.read(2 if first else 4)
    text = file.read(min(int.from_bytes(size, "little"), _LONGEST_HEADER + 1))
    if b"\\" in text:  # Python's parser, which numpy calls, would warn of an escape sequence that it does not know
        raise ValueError("its header has a backslash")
    header: tuple[Shape, bool, np.dtype[Any]] = read(io.BytesIO(size + text))
    return header


def write_header(file: IO[bytes], shape: Shape, dtype: str) -> None:
    """Write the header of an array in C order."""
    np.lib.format.write_array_header_1_0(
        file, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": tuple(shape)}
    )
