"""NumPy's `.npz`: an archive of arrays by name, as nnU-Net writes its probabilities."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from segcal.data.io.base import (
    PIECE,
    Format,
    Key,
    Shape,
    Stored,
    Writer,
    array_in,
    declared_bytes,
    decompressed,
    plain,
    readable,
)
from segcal.data.io.npy import read_header, write_header
from segcal.types import Array, InputError

_RIVAL: dict[str, str] = {"logits": "probabilities", "probabilities": "logits"}
_LEVEL = 1  # of compression: higher ones take several times as long and save a few percent of scores


class Npz(Format):
    """The array called `logits`, `probabilities` or `labels`, or the only one."""

    extensions = {"scores": (".npz",), "labels": (".npz",)}  # noqa: RUF012

    def shape(self, path: Path, key: Key, space: Shape | None = None, *, num_classes: int | None = None) -> Shape:
        """Return the shape, from the header; the rest is not decompressed."""
        return _without_z(_shape(path, key), key, space)

    def read(self, path: Path, key: Key, space: Shape | None = None) -> Stored:
        """Return the array, decompressed once."""
        array = read_array(path, key)
        return Stored(array.reshape(_without_z(array.shape, key, space)))

    @contextmanager
    def create(self, path: Path, key: Key, shape: Shape, dtype: str, *, like: Path | None) -> Iterator[Writer]:
        """Write the slabs to a temporary file, which is then compressed: the archive has all of a class together."""
        stored = _shape(like, key) if like is not None else shape
        flat = key != "labels" and len(stored) == len(shape) + 1 and stored[1] == 1
        with tempfile.TemporaryFile(dir=path.parent) as raw:
            yield Writer(raw, 0, shape, dtype, classes=key != "labels")
            with (
                zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive,
                archive.open(f"{key}.npy", "w", force_zip64=True) as member,
            ):
                write_header(member, (shape[0], 1, *shape[1:]) if flat else shape, dtype)
                raw.seek(0)
                shutil.copyfileobj(raw, member, PIECE)


FORMAT = Npz()


def _without_z(shape: Shape, key: Key, space: Shape | None) -> Shape:
    """Return the shape without the z axis of length one that nnU-Net gives pictures."""
    flat = key == "probabilities" and len(shape) == 4 and shape[1] == 1 and space is not None and len(space) == 2
    return (shape[0], *shape[2:]) if flat else shape


def _shape(path: Path, key: Key) -> Shape:
    with readable(path), _opened(path) as archive, archive.open(_member(path, archive, key)) as file:
        return read_header(file)[0]


def read_array(path: Path, key: str) -> Array:
    """Return the array called `key`, or the only one; its size is checked before memory is taken."""
    with readable(path), _opened(path) as archive, archive.open(_member(path, archive, key)) as member:
        shape, fortran, dtype = read_header(member)
        if dtype.hasobject:
            raise ValueError("Python objects")
        size = declared_bytes(shape, dtype, path, compressed=True)
        return plain(array_in(decompressed(member, size), shape, dtype, 0, "F" if fortran else "C"), path)


def _opened(path: Path) -> zipfile.ZipFile:
    """Open the archive, or say what else the file is."""
    with path.open("rb") as file:
        start = file.read(6)
    if start == b"\x93NUMPY":
        raise InputError(f"'{path}' must be a .npz archive, got a .npy file; rename it")
    if start[:1] == b"\x80":
        raise ValueError("pickle")
    return zipfile.ZipFile(path)


def _member(path: Path, archive: zipfile.ZipFile, key: str) -> str:
    found = [name.removesuffix(".npy") for name in archive.namelist()]
    return f"{_name(path, found, key)}.npy"


def _name(path: Path, found: Sequence[str], key: str) -> str:
    if key in found:
        return key
    if (rival := _RIVAL.get(key)) in found:
        raise InputError(
            f"'{path}' must hold an array '{key}' as the scores are declared to be {key}, got '{rival}'; "
            f'set scores = "{rival}"'
        )
    if len(found) != 1:
        raise InputError(
            f"'{path}' must hold an array '{key}' or a single array, got {sorted(found)}; save it as {key}=..."
        )
    return found[0]
