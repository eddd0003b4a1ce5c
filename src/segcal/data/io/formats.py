"""The file formats that segcal reads and writes, known by extension and never by content."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from segcal.data.io import arrays, nifti, pictures, zarr
from segcal.data.io.base import Content, Format

FORMATS: tuple[Format, ...] = (pictures.FORMAT, *arrays.FORMATS, nifti.FORMAT, zarr.FORMAT)
"""The formats, in the order in which messages name their extensions."""


def extensions(content: Content) -> tuple[str, ...]:
    """Return the extensions of files that can hold scores, labels or an image.

    Examples:
        >>> extensions("scores")
        ('.npy', '.npz', '.nii.gz', '.nii', '.zarr')
    """
    return tuple(end for kind in FORMATS for end in kind.extensions.get(content, ()))


SCORES, LABELS, IMAGES = extensions("scores"), extensions("labels"), extensions("image")


_BY_END = sorted(
    {end: kind for kind in FORMATS for known in kind.extensions.values() for end in known}.items(),
    key=lambda item: len(item[0]),
    reverse=True,
)
"""The longest first: a .nii.gz is no .gz."""


def extension_of(path: Path, among: Sequence[str]) -> str | None:
    """Return the extension of `path` in lower case if it is one of `among`, else None.

    Examples:
        >>> extension_of(Path("a.b.NII.GZ"), SCORES)
        '.nii.gz'
    """
    return next((end for end in sorted(among, key=len, reverse=True) if path.name.lower().endswith(end)), None)


def format_of(path: Path) -> Format:
    """Return the format of a file that `extension_of` knows."""
    return _format_of_name(path.name)


@lru_cache(maxsize=256)  # files of a case are asked about again and again, then never again
def _format_of_name(name: str) -> Format:
    return next(kind for end, kind in _BY_END if name.lower().endswith(end))
