"""Guards of outputs: they replace nothing that is read, and nothing but segcal's own earlier output of the same kind.

A folder that segcal writes has a marker that lists everything in it with checksums, its own included. The folder is
replaced only as long as it holds exactly that.

A single file is replaced only with its signature: the SHA-256 of everything else in the file, so that a document into
which a table was pasted is not mistaken for the table. Files in formats without a place for one (CSV, Parquet,
torch.export) are never replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import url2pathname

from segcal.files.reading import read_json, write_json
from segcal.types import InputError

MARKER = "segcal.json"
"""Every folder that segcal writes holds this file, which lists the others."""

LISTED = "files"
"""Key of the marker under which all files are listed with their checksums."""

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
    "unfinished": "unfinished output",
}
"""Description of each kind of folder, by the key of its marker."""

_GROWING = ("unfinished", "checkpoints")
"""Folders in which single files are written and removed, instead of replacing the folder."""

_known: dict[tuple[int, ...], str] = {}
"""Checksums by what changes with the content of a file, and with its number of names (hard links)."""


def url_of(path: str | Path) -> str | None:
    """Return the URL that a path stands for, even if it was a `Path` in between, which merges slashes; else None.

    Examples:
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
    """Raise unless `target` is free, an empty folder, or a folder as segcal wrote it.

    With `kind`, a key of the marker ("method", "results", ...), a folder of another kind is refused as well.
    """
    refuse_url(target)
    if os.path.ismount(target):  # `Path.is_mount` is not there on Windows before Python 3.12
        raise InputError(f"'{target}' is a mount point, which no output can replace; choose a folder inside it")
    if not target.is_dir():
        if target.exists():
            raise InputError(f"'{target}' is a file, and a folder is to be written there; choose another name")
        return
    if not any(target.iterdir()):
        return
    found = kind_of(target)
    if kind is not None and found not in (None, kind):
        raise InputError(
            f"'{target}' holds {KINDS[found]}, which {KINDS[kind]} must not replace; choose another output folder"
        )
    if (found != kind or kind not in _GROWING) and (stranger := stranger_in(target)):
        raise InputError(
            f"'{target}' holds files that segcal did not write ('{stranger}'); "
            "move them elsewhere, or choose another output folder"
        )


def refuse_unfinished(folder: Path) -> None:
    """Raise if a folder is the unfinished output of a command, in which cases are missing."""
    if kind_of(folder) == "unfinished":
        raise InputError(f"'{folder}' holds unfinished output; run the command again to complete it")


def refuse_overwriting(out: Path | None, *inputs: Path | None) -> None:
    """Raise if `out` is an input, holds one, or lies inside one, also where links inside an input lead."""
    if out is None:
        return
    target = resolved(out)
    for path in inputs:
        for source in () if path is None else _read_through(local_path(path)):
            if source.is_relative_to(target) or target.is_relative_to(source):
                raise InputError(f"'{out}' cannot be written to, as '{path}' is read from; choose another output")


def check_output_folder(out: Path | None, kind: str, *inputs: Path | None) -> None:
    """Raise unless a folder of some kind may be written at `out`: not among the inputs, and replacing nothing else."""
    if out is not None:
        refuse_overwriting(out, *inputs)
        refuse_foreign(out, kind)


def check_output_file(out: Path | None, extensions: Sequence[str], *inputs: Path | None) -> None:
    """Raise unless a file may be written at `out`: not a folder, not among the inputs, and of a known extension.

    A file that exists is replaced only if it is empty or has the signature of segcal, and never inside a folder that
    segcal wrote.
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
    if out.name == MARKER or (out.parent / MARKER).exists():
        raise InputError(f"'{out}' lies in a folder that segcal wrote or under its name; choose another name")
    refuse_foreign_file(out)
    place = next(parent for parent in out.absolute().parents if os.access(parent, os.F_OK))
    if not place.is_dir():
        raise InputError(f"cannot write to '{out}': '{place}' is a file; choose another output file")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to '{out}': no permission to write in '{place}'; choose another output file")


def refuse_foreign_file(out: Path) -> None:
    """Raise if a file exists that is neither empty nor signed by segcal."""
    if not out.exists() or (out.is_file() and not out.stat().st_size) or is_signed(out):
        return
    why = "segcal did not write it, or it was changed since"
    if out.suffix.lower() not in _PLACES:
        why = f"a file that ends in '{out.suffix}' cannot tell whether segcal wrote it"
    raise InputError(f"'{out}' exists, and {why}; choose another name, or remove it")


def marker_of(folder: Path) -> dict[str, Any]:
    """Return the marker of a folder; empty if there is none that can be read."""
    try:
        content = read_json(folder / MARKER)
    except InputError:
        return {}
    return content if isinstance(content, dict) else {}


def kind_of(folder: Path) -> str | None:
    """Return what kind of folder segcal wrote here, or None if its marker does not say."""
    content = marker_of(folder)
    return next((key for key in KINDS if key in content), None)


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file; that of a link, a device or a pipe is empty, as no file of segcal is one."""
    if path.is_symlink() or not path.is_file():
        return ""
    key = _identity_of(path)
    if key not in _known:
        with path.open("rb") as file:
            _known[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _known[key]


def trust_checksum(path: Path, digest: str) -> None:
    """Take over the checksum of a file that has just got a second name, or was written by another process."""
    _known[_identity_of(path)] = digest


def checksums(folder: Path) -> dict[str, str]:
    """Return the checksum of every file and empty folder below a folder except its marker, by relative path."""
    found = folder.rglob("*")
    paths = sorted(path for path in found if path.is_symlink() or not path.is_dir() or not any(path.iterdir()))
    return {path.relative_to(folder).as_posix(): checksum(path) for path in paths if path != folder / MARKER}


def list_files(folder: Path) -> None:
    """Complete the marker of a folder, if it has one, with the checksums of all files, its own included."""
    if (folder / MARKER).is_file():
        content = read_json(folder / MARKER)
        content[LISTED] = checksums(folder)
        content[LISTED][MARKER] = _digest(content)
        write_json(folder / MARKER, content)


def listed_files(folder: Path) -> dict[str, str] | None:
    """Return the files that the marker of a folder lists, by relative path; None unless it is as segcal wrote it."""
    content = marker_of(folder)
    listed = content.get(LISTED)
    if not isinstance(listed, dict) or MARKER not in listed:
        return None
    digest = listed.pop(MARKER)
    return listed if digest == _digest(content) else None


def refuse_changed(folder: Path, names: Iterable[str], remedy: str) -> None:
    """Raise unless the marker of a folder, and the files of these names, are as segcal wrote them."""
    listed = listed_files(folder)
    changed = (name for name in names if listed is not None and listed.get(name) != checksum(folder / name))
    if wrong := MARKER if listed is None else next(changed, None):
        raise InputError(
            f"the files in '{folder}' must be as they were saved, got another checksum of '{wrong}': it was changed or "
            f"damaged; {remedy}"
        )


def stranger_in(folder: Path) -> str | None:
    """Return the name of something in a folder that segcal did not write, or that was changed since."""
    listed = listed_files(folder)
    if listed is None and (folder / MARKER).exists():
        return MARKER
    return next((name for name, digest in checksums(folder).items() if (listed or {}).get(name) != digest), None)


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def resolved(path: Path) -> Path:
    """Return where a path leads; raise if its links lead back to themselves."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError before Python 3.13
        raise InputError(f"'{path}' is a link that leads back to itself; remove it, or give another path") from error


def _read_through(path: Path) -> Iterator[Path]:
    """Yield where an input lies, and where all links inside it lead."""
    waiting, seen = [path], set[Path]()
    while waiting:
        source = resolved(waiting.pop())
        if source in seen:
            continue
        seen.add(source)
        yield source
        waiting += _links(source)


def _links(folder: Path) -> Iterator[Path]:
    """Yield all links below a folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield Path(entry)
            elif entry.is_dir():
                yield from _links(Path(entry))


def _identity_of(path: Path) -> tuple[int, ...]:
    status = path.stat()
    # whoever edits a file can set its time of modification, but not that of the change itself
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


_WORDS = "written by segcal, sha256"
_Place = tuple[bytes, Callable[[str], bytes], bytes]
"""Place of a signature in a format: the end of a file without one, bytes made of the signature, what follows them."""


def _png_chunk(text: str) -> bytes:
    """Return a text chunk, which viewers skip."""
    content = b"tEXtsegcal\0" + text.encode()
    return struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))


def _onnx_entry(text: str) -> bytes:
    """Return an entry of the metadata of a model; protocol buffers may be continued by appending fields."""
    fields = b"".join(tag + bytes([len(part)]) + part for tag, part in ((b"\n", b"segcal"), (b"\x12", text.encode())))
    return b"\x72" + bytes([len(fields)]) + fields


def _zip_comment(text: str) -> bytes:
    """Return the comment at the end of an archive, after its length."""
    return struct.pack("<H", len(text)) + text.encode()


_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_XML: _Place = (b"", lambda text: f"<!-- {text} -->\n".encode(), b"")
_PERCENT: _Place = (b"", lambda text: f"% {text}\n".encode(), b"")
_PLACES: dict[str, _Place] = {
    **dict.fromkeys((".html", ".htm", ".md", ".svg"), _XML),
    **dict.fromkeys((".tex", ".pdf"), _PERCENT),
    ".json": (b"\n}\n", lambda text: f',\n  "signature": "{text}"'.encode(), b"\n}\n"),
    ".png": (_PNG_END, _png_chunk, _PNG_END),
    ".onnx": (b"", _onnx_entry, b""),
    ".npz": (b"\0\0", _zip_comment, b""),  # the length of no comment
}


def sign(path: Path) -> None:
    """Add a signature to a file, if its format has a place for one."""
    place = _PLACES.get(path.suffix.lower())
    content = path.read_bytes() if place is not None else b""
    if place is not None and content.endswith(place[0]):
        content += b"\n" if place in (_XML, _PERCENT) and not content.endswith(b"\n") else b""
        path.write_bytes(_signed(content.removesuffix(place[0]), place))


def is_signed(path: Path) -> bool:
    """Return whether segcal wrote a file, which has not been changed since."""
    place = _PLACES.get(path.suffix.lower())
    if place is None or not path.is_file():
        return False
    _, encoded, after = place
    length = len(encoded(f"{_WORDS} {'0' * 64}")) + len(after)
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - length))
        if _WORDS.encode() not in file.read(length):  # not all of a large file of somebody else is read
            return False
    content = path.read_bytes()
    return len(content) > length and content == _signed(content[:-length], place)


def _signed(start: bytes, place: _Place) -> bytes:
    end, encoded, after = place
    return start + encoded(f"{_WORDS} {hashlib.sha256(start + end).hexdigest()}") + after
