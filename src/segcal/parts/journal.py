"""What processes have found so far: a line for each finished case, and files that appear whole."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segcal.files import staged_file

_LINES, _AT = ".jsonl", "at"


@dataclass(frozen=True)
class Journal:
    """What processes have found so far, in a folder that they share.

    Each process appends notes to a file of its own. A file for each case would take as long to make and to remove as an
    image of a megabyte takes to write.
    """

    folder: Path
    own: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Name of the file of this process."""

    def add(self, content: bytes, ending: str, cases: int) -> None:
        """Add a file that covers some number of cases; no two files ever have the same name."""
        with staged_file(self.place / f"{uuid.uuid4().hex}-{cases}{ending}") as staging:
            staging.write_bytes(content)

    def note(self, name: str, content: Mapping[str, Any]) -> None:
        """Note that a case is finished."""
        self.place.mkdir(parents=True, exist_ok=True)
        line = json.dumps({**content, "case": name, _AT: time.time_ns()})
        with (self.place / f"{self.own}{_LINES}").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def notes(self) -> dict[str, dict[str, Any]]:
        """Return what was noted, by case; the last note counts."""
        ordered = sorted(self._lines(), key=lambda content: int(content[_AT]))
        return {content["case"]: {key: content[key] for key in content if key != _AT} for content in ordered}

    def files(self, ending: str) -> list[Path]:
        """Return the files with an ending."""
        return sorted(self.place.glob(f"*{ending}")) if self.place.is_dir() else []

    def finished(self) -> int:
        """Return the number of finished cases, of those in files read from their names alone."""
        counts = [re.search(r"-(\d+)\.safetensors$", path.name) for path in self.files(".safetensors")]
        return len(self.notes()) + sum(int(count[1]) for count in counts if count)

    @property
    def place(self) -> Path:
        """The folder of all these files."""
        return self.folder / "found"

    def _lines(self) -> Iterator[dict[str, Any]]:
        for path in self.files(_LINES):
            for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
                content = _parsed(line)  # nothing if it is the last line of a process that was killed
                if isinstance(content.get("case"), str) and isinstance(content.get(_AT), int):
                    yield content


def _parsed(line: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
