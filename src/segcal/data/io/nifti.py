"""NIfTI files as arrays in `[z, y, x]` order and back, with their geometry.

NIfTI and nibabel count axes x, y, z. SimpleITK and nnU-Net, and therefore segcal, give the same voxels as
`[z, y, x]`. Scores have one more axis for the classes: the first one (`[L, *S]` stored as it is) or, as NIfTI
tools do, the last. Affine, orientation and units of what is written are those of the file that it was made from.
"""

from __future__ import annotations

import gzip
import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

import numpy as np

from segcal.data.io.base import (
    PIECE,
    ArrayFile,
    Key,
    Opened,
    Shape,
    Spacing,
    Write,
    check_declared,
    decompressed,
    readable,
    slab_writer,
)
from segcal.types import Array, InputError, extra

_ENDS = (".nii.gz", ".nii")
_SAME_PLACE = 1e-3  # by how much two entries of affines that mean the same may differ
_SAME_LENGTH = 1e-3
_MILLIMETRES = {1: 1e3, 3: 1e-3}
"""Codes of metres and micrometres, which a header may state instead of mm; an unknown code counts as mm."""
_LEVEL = 1  # of compression, as nibabel's
_EXTENSIONS = 1 << 26
"""Bytes that the extensions of a header may have (64 MiB)."""


class Nifti(ArrayFile):
    """A volume with its place in the world."""

    extensions = {"scores": _ENDS, "labels": _ENDS, "image": _ENDS}  # noqa: RUF012
    has_geometry = True

    def _open(self, key: Key, space: Shape | None, num_classes: int | None) -> Opened:
        """Read labels `[z, y, x]` (or `[y, x]`), scores `[L, z, y, x]`, or an image as float32.

        Without `space`, the classes lie along the first axis if that has `num_classes` entries, else along the last if
        that has. If `num_classes` is not known either, they lie along the last of four axes, as in most tools, provided
        that it is shorter than the others.
        """
        image, path = _open(self.path), self.path
        stored, own, axis = tuple(image.shape), _space(image)[::-1], None
        if key == "labels" or (key == "image" and own == space):
            shape = own
        else:
            axis = _likely_axis(stored, num_classes, path) if space is None else _class_axis(stored, space, path)
            if space is None:
                space = (stored[1:] if axis == 0 else stored[: min(axis, 3)])[::-1]
            shape = (int(stored[axis]), *space)

        def load() -> Array:
            values = _data(image, path).T
            values = (values if axis is None else np.moveaxis(values, -1 - axis, 0)).reshape(shape)
            return values.astype(np.float32) if key == "image" else values

        return Opened(shape, load)

    def spacing(self, dims: int) -> Spacing:
        """Return the spacing in mm in the order z, y, x."""
        return _zooms(_open(self.path), dims)

    @contextmanager
    def create(self, key: Key, shape: Shape, dtype: str, *, like: Path | None) -> Iterator[Write]:
        """Write a file with the geometry of `like`, a volume or scores over the same space; any floats as float32."""
        if like is None:
            raise InputError(f"NIfTI files such as '{self.path}' need a geometry; give a NIfTI file to take it from")
        source, classes = _open(like), key != "labels"
        header, first = _new_header(source, shape, classes, like, dtype)
        stored = header.get_data_dtype().str  # in the byte order of the source
        options = {"classes": classes, "classes_last": classes and first}
        if not self.path.name.lower().endswith(".gz"):
            with self.path.open("w+b") as file:
                yield slab_writer(file, _write_header(file, header), shape, stored, **options)
            return
        with tempfile.TemporaryFile(dir=self.path.parent) as raw:
            yield slab_writer(raw, 0, shape, stored, **options)
            # without a time and a name, so that the same values are the same bytes
            with self.path.open("wb") as target, gzip.GzipFile("", "wb", _LEVEL, target, mtime=0) as packed:
                _write_header(packed, header)  # type: ignore[arg-type]
                raw.seek(0)
                shutil.copyfileobj(raw, packed, PIECE)


def read_volume(path: Path) -> tuple[Array, Spacing]:
    """Return a volume `[z, y, x]` in its own precision, and its spacing in the same order."""
    values = Nifti(path).read("labels")
    return values, Nifti(path).spacing(values.ndim)


def volume_orientation(path: Path) -> str | None:
    """Return the directions in which the axes `[z, y, x]` of a volume count, such as SAR; None if unknown."""
    found = _orientation(np.asarray(_open(path).affine))[::-1]
    return found if sorted(found.translate(str.maketrans("RPI", "LAS"))) == ["A", "L", "S"] else None


@np.errstate(invalid="ignore", over="ignore")  # of affines that are not finite, which differ
def check_same_place(paths: Sequence[Path], *, of: str) -> None:
    """Raise unless all of these files have the affine of the first one, to a thousandth."""
    affines = [np.asarray(_open(path).affine) for path in paths]
    for path, affine in zip(paths[1:], affines[1:], strict=True):
        gap = np.abs(affine - affines[0]).max()
        if gap <= _SAME_PLACE:
            continue
        ours, theirs = _orientation(affine), _orientation(affines[0])
        if ours != theirs:
            raise InputError(
                f"'{path}' and '{paths[0]}' of {of} must have the same orientation, got {ours} and {theirs}; "
                "reorient one to the other"
            )
        raise InputError(
            f"'{path}' and '{paths[0]}' of {of} lie in different places (affines differ), by up to {gap:.4g} "
            f"where {_SAME_PLACE} is allowed; resample one to the other"
        )


def _orientation(affine: Array) -> str:
    """Return the directions of the axes, such as RAS (right, anterior, superior)."""
    from nibabel.orientations import aff2axcodes  # noqa: PLC0415

    if not np.isfinite(affine).all():
        return "unknown"
    return "".join(code or "?" for code in aff2axcodes(affine))  # type: ignore[no-untyped-call]


def _open(path: Path) -> Any:
    nibabel = extra("nibabel", f"NIfTI files such as '{path}' need nibabel", "medical")
    with readable(path), _without_remarks():
        _check_offset(path)
        return nibabel.load(path, mmap="r")


def _check_offset(path: Path) -> None:
    """Raise if the values of a file begin inside its header, or behind extensions too large for the memory.

    nibabel would read the header as values where the offset is 0, and reads all extensions at once.
    """
    from nibabel import Nifti1Header, Nifti2Header  # noqa: PLC0415

    with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as file:
        start = file.read(Nifti2Header.sizeof_hdr)
    for kind in (Nifti1Header, Nifti2Header):
        size = kind.sizeof_hdr
        if kind.may_contain_header(start):  # type: ignore[no-untyped-call]
            offset = float(kind(start[:size], check=False)["vox_offset"])  # type: ignore[no-untyped-call]
            if not size <= offset <= size + _EXTENSIONS:
                raise ValueError(
                    f"its values begin at byte {offset:g}, in its header or behind more than {_EXTENSIONS >> 20} "
                    "MiB of extensions"
                )


_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)
logging.getLogger("nibabel.global").addFilter(lambda record: not _is_quiet.get())


@contextmanager
def _without_remarks() -> Iterator[None]:
    """Keep nibabel from printing remarks on a header, several for each time that it is read.

    Its own `LoggingOutputSuppressor` loses the handlers for good; and nothing here is shared with other threads.
    """
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)


def _data(image: Any, path: Path) -> Array:
    """Return the values, memory-mapped where the file is neither compressed nor scaled."""
    with readable(path):
        compressed = path.name.lower().endswith(".nii.gz")
        check_declared(image.dataobj.shape, image.dataobj.dtype, path, compressed=compressed)
        return _decompress(image.dataobj, path) if compressed else np.asanyarray(image.dataobj)


def _decompress(stored: Any, path: Path) -> Array:
    """Return the values of a compressed file, read to its end: only there does gzip compare the checksum.

    nibabel would stop at the last value, and would first set aside as much memory as a damaged header asks for.
    """
    from nibabel.volumeutils import apply_read_scaling  # noqa: PLC0415

    with gzip.open(path) as stream:
        values = decompressed(stream, stored.shape, stored.dtype, stored.offset, "F")  # type: ignore[arg-type]
    scaled: Array = apply_read_scaling(values, stored.slope, stored.inter)
    return scaled


def _space(image: Any) -> Shape:
    """Return the shape in NIfTI order; axes of length one after the third (time, vector) are not space."""
    shape = tuple(image.shape)
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def _class_axis(shape: Shape, space: Shape, path: Path) -> int:
    """Return the axis of the classes: the first if that fits, else the last (ITK puts an axis of one before it)."""
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


def _likely_axis(shape: Shape, num_classes: int | None, path: Path) -> int:
    """Return the first axis if it has `num_classes` entries, else the last if that has; or the most likely one."""
    known, last = _possible_axes(shape), len(shape) - 1
    if num_classes is not None:
        fitting = [axis for axis in known if shape[axis] == num_classes]
        problem = f"'{path}' must have num_classes={num_classes} entries along the first or the last of 3 or 4 axes"
        remedy = "set num_classes or fix the scores"
    else:
        fitting = [last] if known == (last,) or (last == 3 and shape[last] < min(shape[:last])) else []
        problem = f"the class axis of '{path}' must be known"
        remedy = "give num_classes, or name the classes in segcal.toml"
    if not fitting:
        raise InputError(f"{problem}, got NIfTI shape {shape} and no labels; {remedy}")
    return fitting[0]


def _possible_axes(shape: Shape) -> tuple[int, ...]:
    if len(shape) in (3, 4):
        return (0, len(shape) - 1)
    return (4,) if len(shape) == 5 and shape[3] == 1 else ()  # ITK puts vectors along the fifth axis


def _list(sizes: Shape) -> str:
    return ", ".join(str(size) for size in sizes)


def _zooms(image: Any, dims: int) -> Spacing:
    """Return the voxel size in mm, last axis first: that of the affine, since it places the volume in the world.

    Where the affine agrees with the lengths in the header (`pixdim`), which are exact, these are taken.
    """
    affine = np.asarray(image.affine, np.float64)[:3, :3]
    stated = np.array(image.header.get_zooms()[:dims], np.float64)
    lengths = np.concatenate([np.sqrt((affine**2).sum(axis=0))[:dims], stated[3:]])  # axes of channels are not in space
    if not (np.isfinite(lengths).all() and (lengths > 0).all()) or np.allclose(lengths, stated, rtol=_SAME_LENGTH):
        lengths = stated
    # the code itself, as nibabel fails at one that it does not know; Analyze, the format before NIfTI, has none
    code = int(image.header["xyzt_units"]) % 8 if "xyzt_units" in image.header else 0
    unit = _MILLIMETRES.get(code, 1.0)
    return tuple(float(length) * unit for length in lengths[::-1])


def _new_header(source: Any, shape: Shape, classes: bool, like: Path, dtype: str) -> tuple[Any, bool]:
    """Return the header of a new file with the geometry of `source`, and whether its classes come first."""
    header, first = source.header.copy(), False
    if classes:
        axis = _class_axis(source.shape, shape[1:], like)
        first = axis == 0
        stored = (*source.shape[:axis], shape[0], *source.shape[axis + 1 :])
    elif _space(source) == tuple(shape[::-1]):
        stored = source.shape
    else:
        _class_axis(source.shape, shape, like)  # raises where `like` covers another space
        stored, header = tuple(shape[::-1]), None
    if header is not None:
        if not (classes and header.get_intent()[0] == "vector"):  # by which ITK knows scores of several classes
            header.set_intent("none")  # labels may be marked as labels, and these are not
        header["cal_min"] = header["cal_max"] = 0  # the display range was that of the other values
    with readable(like):  # a new header cannot hold an affine that maps different voxels to one place
        image = type(source)(np.broadcast_to(np.float32(0), stored), source.affine, header)
    if header is None:
        image.header["xyzt_units"] = source.header["xyzt_units"]
    image.update_header()
    new = image.header
    whole = np.dtype(dtype).kind == "u" or np.dtype(dtype) == np.int32
    new.set_data_dtype(dtype if whole else np.float32)
    new.set_slope_inter(1, 0)
    new.set_data_offset(0)  # the smallest that header and extensions leave
    return new, first


def _write_header(file: IO[bytes], header: Any) -> int:
    """Write the header and its extensions, and return where the values begin."""
    header.write_to(file)
    offset = int(header.get_data_offset())
    file.write(b"\0" * (offset - file.tell()))
    return offset
