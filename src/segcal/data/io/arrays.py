"""NumPy's files: `.npy`, one array, memory-mapped; `.npz`, arrays by name, as nnU-Net writes its probabilities."""

from __future__ import annotations

import io
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from segcal.data.io.base import (
    PIECE,
    ArrayFile,
    Key,
    Opened,
    Shape,
    Write,
    check_declared,
    decompressed,
    plain,
    readable,
    slab_writer,
)
from segcal.types import Array, InputError

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000  # bytes, numpy's own limit
_RIVAL = {"logits": "probabilities", "probabilities": "logits"}
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others are decompressed by zipfile without a limit
_LISTED = 5  # names of arrays in a message
_LEVEL = 1  # of compression: higher ones take several times as long and save a few percent of scores


class Npy(ArrayFile):
    """One array without a name, which stays on disk until it is needed."""

    extensions = {"scores": (".npy",), "labels": (".npy",), "image": (".npy",)}  # noqa: RUF012

    def _open(self, key: Key, space: Shape | None, num_classes: int | None) -> Opened:
        """Map the array, in its own precision and range, so that only what is looked at is read."""
        with self.path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                np.load(self.path, allow_pickle=False).close()  # raises what numpy says about a pickle, say
                raise InputError(f"'{self.path}' must be a .npy file, got a .npz archive; rename it")
            file.seek(0)
            shape, order, dtype = _read_header(file)
            offset = file.tell()
        if dtype.hasobject:
            raise ValueError("it has Python objects")
        return Opened(shape, lambda: np.memmap(self.path, dtype, "r", offset, shape, order))

    @contextmanager
    def create(self, key: Key, shape: Shape, dtype: str, *, like: Path | None) -> Iterator[Write]:
        """Write the header, then the slabs where they belong."""
        with self.path.open("w+b") as file:
            _write_header(file, shape, dtype)
            yield slab_writer(file, file.tell(), shape, dtype, classes=key != "labels")


class Npz(ArrayFile):
    """The array called `logits`, `probabilities` or `labels`, or the only one."""

    extensions = {"scores": (".npz",), "labels": (".npz",)}  # noqa: RUF012

    def _open(self, key: Key, space: Shape | None, num_classes: int | None) -> Opened:
        """Read the header; the rest is decompressed once."""
        with _member(self.path, key) as file:
            shape = _without_z(_read_header(file)[0], key, space)
        return Opened(shape, lambda: read_array(self.path, key).reshape(shape))

    @contextmanager
    def create(self, key: Key, shape: Shape, dtype: str, *, like: Path | None) -> Iterator[Write]:
        """Write the slabs to a temporary file, which is then compressed: the archive has all of a class together."""
        stored = Npz(like).shape(key) if like is not None else shape
        flat = key != "labels" and len(stored) == len(shape) + 1 and stored[1] == 1
        with tempfile.TemporaryFile(dir=self.path.parent) as raw:
            yield slab_writer(raw, 0, shape, dtype, classes=key != "labels")
            with (
                zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive,
                archive.open(f"{key}.npy", "w", force_zip64=True) as member,
            ):
                _write_header(member, (shape[0], 1, *shape[1:]) if flat else shape, dtype)
                raw.seek(0)
                shutil.copyfileobj(raw, member, PIECE)


def _read_header(file: IO[bytes]) -> tuple[Shape, Literal["C", "F"], np.dtype[Any]]:
    """Return shape, order and dtype of the array that follows in `file`."""
    version = np.lib.format.read_magic(io.BytesIO(file.read(len(_MAGIC) + 2)))
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {'.'.join(map(str, version))} of the format is not known")
    first = version == (1, 0)
    read: Callable[..., Any] = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    size = file.read(2 if first else 4)
    text = file.read(min(int.from_bytes(size, "little"), _LONGEST_HEADER + 1))
    if b"\\" in text:  # Python's parser, which numpy calls, would warn of an escape sequence that it does not know
        raise ValueError("its header has a backslash")
    shape, fortran_order, dtype = read(io.BytesIO(size + text))
    return shape, "F" if fortran_order else "C", dtype


def _write_header(file: IO[bytes], shape: Shape, dtype: str) -> None:
    """Write the header of an array in C order."""
    np.lib.format.write_array_header_1_0(
        file, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": tuple(shape)}
    )


def _without_z(shape: Shape, key: Key, space: Shape | None) -> Shape:
    """Return the shape without the z axis of length one that nnU-Net gives pictures."""
    flat = key == "probabilities" and len(shape) == 4 and shape[1] == 1 and space is not None and len(space) == 2
    return (shape[0], *shape[2:]) if flat else shape


def read_array(path: Path, key: str) -> Array:
    """Return the array called `key`, or the only one; its size is checked before memory is taken."""
    with _member(path, key) as member:
        shape, order, dtype = _read_header(member)
        if dtype.hasobject:
            raise ValueError("Python objects")
        check_declared(shape, dtype, path, compressed=True)
        return plain(decompressed(member, shape, dtype, 0, order), path)


@contextmanager
def _member(path: Path, key: str) -> Iterator[IO[bytes]]:
    """Open the file of one array in an archive, or say what else the file is."""
    with readable(path):
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
        if start == _MAGIC:
            raise InputError(f"'{path}' must be a .npz archive, got a .npy file; rename it")
        if start[:1] == b"\x80":
            raise ValueError("pickle")
        with zipfile.ZipFile(path) as archive:
            found = archive.getinfo(_name(path, archive.namelist(), key))
            if found.compress_type not in _COMPRESSIONS:
                raise ValueError("it is compressed in a way that numpy does not use")
            with archive.open(found) as member:
                yield member


def _name(path: Path, members: list[str], key: str) -> str:
    """Return the name of the member that holds the array called `key`, or the only one."""
    if (own := f"{key}.npy") in members:
        return own
    found = sorted(name.removesuffix(".npy") for name in members)
    if (rival := _RIVAL.get(key)) in found:
        raise InputError(
            f"'{path}' must hold an array '{key}' as the scores are declared to be {key}, got '{rival}'; "
            f'set scores = "{rival}"'
        )
    if len(found) != 1:
        listed = f"{found[:_LISTED]}{' and others' * (len(found) > _LISTED)}"
        raise InputError(f"'{path}' must hold an array '{key}' or a single array, got {listed}; save it as {key}=...")
    return f"{found[0]}.npy"
