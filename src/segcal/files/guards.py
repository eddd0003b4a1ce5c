"""What an output may replace: nothing that is read, and nothing but segcal's own earlier output of the same kind."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.request import url2pathname

from segcal.types import InputError

MARKER = "segcal.json"
"""Every folder that segcal writes holds this file; only such a folder is ever replaced."""

KINDS = {
    "method": "a calibrator",
    "results": "results",
    "probabilities": "calibrated probabilities",
    "data": "a data folder",
    "maps": "maps of a diagnosis",
    "fusion": "fused labels",
    "portraits": "portraits of cases",
    "diagnosis": "a diagnosis",
    "decisions": "decisions",
    "checkpoints": "checkpoints of a training run",
    "unfinished": "parts of an unfinished run",
}
"""Description of each kind of folder, by the key of its marker."""

_SIGNS = {
    ".html": b"<title>Calibration report</title>",
    ".htm": b"<title>Calibration report</title>",
    ".json": b'"settings"',
    ".csv": b"case,method,region,metric,value,pixels",
    ".parquet": b"metric",
    ".tex": b"\\begin{tabular}",
    ".md": b"|",
    ".png": b"atplotlib",
    ".pdf": b"atplotlib",
    ".svg": b"atplotlib",
    ".onnx": b"pytorch",
}
"""Bytes near the beginning or end of every file that segcal writes, by extension."""

_ENDS = 1 << 14


def url_of(path: str | Path) -> str | None:
    """Return the URL that a path stands for, also if it was a `Path` in between, which merges slashes; else None.

    >>> url_of(Path("s3://bucket/data")), url_of(Path("file:///data")), url_of(Path("C:/data"))
    ('s3://bucket/data', 'file:///data', None)
    """
    found = re.fullmatch(r"([a-z][a-z0-9+.-]+):/+(.+)", str(path))
    if found is None:
        return None
    return f"{found[1]}://{'/' if found[1] in ('file', 'local') else ''}{found[2]}"


def local_path(path: str | Path) -> Path:
    """Return a path, also that of a `file:` URL."""
    url = url_of(path)
    if url is None or not url.startswith(("file:", "local:")):
        return Path(path)
    return Path(url2pathname(url.partition("://")[2]))


def refuse_url(out: str | Path) -> None:
    """Raise if an output is a URL: object stores cannot rename a folder, and a reader would see unfinished output."""
    if url := url_of(out):
        raise InputError(f"an output must be a local path, got the URL '{url}'; write to a local path and copy it")


def refuse_foreign(target: Path, kind: str | None = None) -> None:
    """Raise unless `target` is free, an empty folder, or a folder that segcal wrote.

    With `kind`, a key of the marker ("method", "results", ...), a folder of another kind is refused as well.
    """
    refuse_url(target)
    if os.path.ismount(target):  # `Path.is_mount` is not there on Windows before Python 3.12
        raise InputError(f"'{target}' is a mount point, which no output can replace; choose a folder inside it")
    if target.is_dir():
        if any(target.iterdir()) and not (target / MARKER).exists():
            raise InputError(f"'{target}' holds files that segcal did not write; choose another output folder")
        found = kind_of(target)
        if kind is not None and found not in (None, kind):
            raise InputError(
                f"'{target}' holds {KINDS[found]}, which {KINDS[kind]} must not replace; choose another output folder"
            )
    elif target.exists():
        raise InputError(f"'{target}' is a file, and a folder is to be written there; choose another name")


def refuse_unfinished(folder: Path) -> None:
    """Raise if a folder is the unfinished output of a command, in which cases are missing."""
    if kind_of(folder) == "unfinished":
        raise InputError(
            f"'{folder}' holds unfinished output; run the command again, or merge its parts, to complete it"
        )


def refuse_overwriting(out: Path | None, *inputs: Path | None) -> None:
    """Raise if `out` is an input, holds one, or lies inside one: what is made from inputs must not change them."""
    for path in inputs:
        if out is None or path is None:
            continue
        source, target = local_path(path).resolve(), out.resolve()
        if source.is_relative_to(target) or target.is_relative_to(source):
            raise InputError(f"'{out}' cannot be written to, as '{path}' is read from; choose another output")


def check_output_file(out: Path | None, extensions: Sequence[str], *inputs: Path | None) -> None:
    """Raise unless a file may be written at `out`: not a folder, not among the inputs, and of a known extension.

    A file that exists is replaced only if it looks like one that segcal writes under this extension, and never inside
    a folder that segcal wrote.
    """
    if out is None:
        return
    refuse_url(out)
    refuse_overwriting(out, *inputs)
    if out.is_dir():
        raise InputError(f"'{out}' is a folder, and a file is to be written there; choose another name")
    if extensions and out.suffix.lower() not in extensions:
        known = " or ".join(extensions)
        raise InputError(f"'{out}' must be a name that ends in {known}, got '{out.suffix}'; choose another name")
    if out.exists() and (out.name == MARKER or (out.parent / MARKER).exists()):
        raise InputError(f"'{out}' is part of a folder that segcal wrote; choose another name")
    if out.exists() and not _looks_written(out):
        raise InputError(f"'{out}' exists, and segcal did not write it; choose another name, or remove it")
    refuse_unwritable(out)


def refuse_unwritable(out: Path) -> None:
    """Raise if no file can be made at `out`, nor folders on the way to it."""
    place = next(parent for parent in out.absolute().parents if os.access(parent, os.F_OK))
    if not place.is_dir():
        raise InputError(f"cannot write to '{out}': '{place}' is a file; choose another output file")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to '{out}': no permission to write in '{place}'; choose another output file")


def kind_of(folder: Path) -> str | None:
    """Return what kind of folder segcal wrote here, or None if its marker does not say."""
    try:
        content = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return next((key for key in KINDS if key in content), None) if isinstance(content, dict) else None


def _looks_written(path: Path) -> bool:
    """Return whether a file is empty or has the sign of a file that segcal wrote."""
    sign, size = _SIGNS.get(path.suffix.lower()), path.stat().st_size
    if sign is None or not size or not path.is_file():
        return not size
    with path.open("rb") as file:
        start = file.read(_ENDS)
        file.seek(max(0, size - _ENDS))
        return sign in start or sign in file.read(_ENDS)
