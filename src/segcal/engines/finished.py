"""Finished cases: a folder of each, which appears when its files are on disk and lists their checksums.

A folder whose files do not match their checksums (truncated, zeroed, emptied) is not trusted.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from segcal.files.guards import MARKER, checksums, listed_files, marker_of
from segcal.files.outputs import remove_folder, staged_folder
from segcal.files.reading import write_json
from segcal.text import CalibrationWarning

_RESULT = "result"


@dataclass(frozen=True)
class FinishedCases:
    """Finished cases, or other finished work with a name, in a folder inside the unfinished output."""

    folder: Path

    def place(self, name: str) -> Path:
        """Return the folder of a case, whose own name no name of a case makes too long."""
        return self.folder / hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]

    @contextmanager
    def working_on(self, name: str, identity: str) -> Iterator[Path]:
        """Yield a folder for the files of a case, which is finished when the block ends.

        Args:
            name: The case.
            identity: What changes when the input of the case does.
        """
        with staged_folder(self.place(name)) as staging:
            yield staging
            write_json(staging / MARKER, {"format": 1, "case": name, "identity": identity})

    def result(self, name: str, identity: str) -> bytes | None:
        """Return the result of a case that is finished; None if it is not, or its input has changed since.

        What is damaged is reported and removed.
        """
        place = self.place(name)
        if not place.exists():
            return None
        if listed_files(place) != checksums(place):
            text = f"the finished work on '{name}' in '{self.folder.parent}' is damaged, and is done again"
            warnings.warn(text, CalibrationWarning, stacklevel=2)
            remove_folder(place)
            return None
        return (place / _RESULT).read_bytes() if marker_of(place)["identity"] == identity else None

    def files(self, name: str) -> dict[str, str]:
        """Return the files of a finished case and their checksums."""
        listed = listed_files(self.place(name)) or {}
        return {file: digest for file, digest in listed.items() if file != _RESULT}

    def count(self) -> int:
        """Return how many cases are finished."""
        return sum(1 for path in self.folder.glob("*") if not path.name.startswith("."))


def write_result(folder: Path, result: bytes) -> None:
    """Write the result of a case to its folder."""
    (folder / _RESULT).write_bytes(result)
