"""Finished cases: a durable record of each, with a checksum of everything that it stands for.

A record begins with the SHA-256 of its rest: a line of JSON with the checksums of the case's files, then the result. It
is written last, when the files are on disk. A record that does not match, or whose files do not, is not trusted.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segcal.files import outputs
from segcal.files.guards import checksums
from segcal.text import CalibrationWarning

FOLDER = "finished"


@dataclass(frozen=True)
class FinishedCases:
    """The finished cases of a run, in its unfinished output `folder`."""

    folder: Path

    def place(self, name: str) -> Path:
        """Return the folder of the files of a case."""
        return self._record(name).with_suffix(".files")

    @contextmanager
    def working_on(self, name: str) -> Iterator[Path]:
        """Yield an empty folder for the files of a case, which is removed if the block fails."""
        place = self.place(name)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        try:
            with outputs.writing_inside(place):
                yield place
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise

    def finish(self, name: str, identity: str, result: bytes = b"") -> None:
        """Record that a case is finished, once its files are on disk.

        Args:
            name: The case.
            identity: What changes when the input of the case does.
            result: What was computed.
        """
        place, record = self.place(name), self._record(name)
        temporary = outputs.temporary_name(record)
        try:
            for path in (*place.rglob("*"), place):
                outputs.sync(path)
            about = {"case": name, "identity": identity, "files": checksums(place)}
            rest = json.dumps(about).encode() + b"\n" + result
            temporary.write_bytes(_digest(rest) + b"\n" + rest)
            outputs.sync(temporary)
            temporary.replace(record)
            outputs.sync(record.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            shutil.rmtree(place, ignore_errors=True)
            raise
        with suppress(OSError):
            place.rmdir()  # of a case without files

    def result(self, name: str, identity: str) -> bytes | None:
        """Return the result of a case that is finished; None if it is not, or its input or files have changed.

        A record or file that is damaged is reported in a warning.
        """
        record = self._record(name)
        if not record.is_file():
            return None
        about, result = self._read(record)
        if about is None or about["files"] != checksums(self.place(name)):
            warnings.warn(
                f"the finished work on '{name}' in '{self.folder}' is damaged, and is done again",
                CalibrationWarning,
                stacklevel=2,
            )
            return None
        return result if about["identity"] == identity else None

    def files(self, name: str) -> dict[str, str]:
        """Return the files of a finished case and their checksums."""
        about, _ = self._read(self._record(name))
        found: dict[str, str] = {} if about is None else about["files"]
        return found

    def count(self) -> int:
        """Return how many records there are."""
        return sum(1 for path in (self.folder / FOLDER).glob("*") if not path.suffix and path.name[0] != ".")

    def _record(self, name: str) -> Path:
        """Return the name of a record, which no name of a case makes too long."""
        return self.folder / FOLDER / hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]

    def _read(self, record: Path) -> tuple[dict[str, Any] | None, bytes]:
        """Return what a record says and its result; None if it is damaged."""
        digest, _, rest = record.read_bytes().partition(b"\n")
        if digest != _digest(rest):
            return None, b""
        about, _, result = rest.partition(b"\n")
        return json.loads(about), result


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
