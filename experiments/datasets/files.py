"""Files of a folder by the names that images, labels and scores share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from segcal.data.io.formats import extension_of
from segcal.types import InputError


def by_name(folder: Path, endings: Sequence[str], hint: str) -> dict[str, Path]:
    """Return the files with one of the endings, by their names without it; raise, with a hint, if there is none."""
    if not folder.is_dir():
        raise InputError(f"'{folder}' is missing; {hint}")
    # macOS leaves files called ._NAME beside those of an archive
    found = {path: extension_of(path, endings) for path in sorted(folder.iterdir()) if path.name[0] != "."}
    if not any(found.values()):
        raise InputError(f"'{folder}' holds no {' or '.join(endings)}; {hint}")
    return {path.name[: -len(ending)]: path for path, ending in found.items() if ending}
