"""The file formats that segcal reads and writes, known by extension and never by content."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from segcal.data.io.arrays import Npy, Npz
from segcal.data.io.base import ArrayFile, Content
from segcal.data.io.nifti import Nifti
from segcal.data.io.pictures import Picture
from segcal.data.io.zarr import Zarr

FORMATS: tuple[type[ArrayFile], ...] = (Picture, Npy, Npz, Nifti, Zarr)
"""The formats, in the order in which messages name their extensions."""


def extensions(content: Content) -> tuple[str, ...]:
    """Return the extensions of files that can hold scores, labels or an image.

    Examples:
        >>> extensions("scores")
        ('.npy', '.npz', '.nii.gz', '.nii', '.zarr')
    """
    return tuple(end for kind in FORMATS for end in kind.extensions.get(content, ()))


SCORES, LABELS, IMAGES = extensions("scores"), extensions("labels"), extensions("image")
_BY_END = {end: kind for kind in FORMATS for known in kind.extensions.values() for end in known}


def extension_of(path: Path, among: Sequence[str] = tuple(_BY_END)) -> str | None:
    """Return the extension of `path` in lower case if it is one of `among`, else None.

    Examples:
        >>> extension_of(Path("a.b.NII.GZ"), SCORES)
        '.nii.gz'
    """
    name = path.name.lower()
    return max((end for end in among if name.endswith(end)), key=len, default=None)  # a .nii.gz is no .gz


def file_at(path: Path) -> ArrayFile:
    """Return the file at a path whose extension is one of a known format."""
    return _BY_END[extension_of(path) or ""](path)
