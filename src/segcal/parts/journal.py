"""What processes have found so far, in files that appear whole."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segcal.files import read_json, staged_file


@dataclass(frozen=True)
class Journal:
    """What processes have found so far, as files that appear whole: one for each case, or one for many."""

    folder: Path

    def add(self, content: bytes, ending: str, cases: int) -> None:
        """Add a file that covers some number of cases; no two files ever have the same name."""
        with staged_file(self.place / f"{uuid.uuid4().hex}-{cases}{ending}") as staging:
            staging.write_bytes(content)

    def note(self, name: str, content: Mapping[str, Any]) -> None:
        """Note that a case is finished."""
        with staged_file(self.place / f"{name}.json") as staging:
            staging.write_text(json.dumps({"case": name, **content}), encoding="utf-8")

    def notes(self) -> dict[str, dict[str, Any]]:
        """Return what was noted, by case."""
        found = [read_json(path) for path in sorted(self.place.glob("*.json"))] if self.place.is_dir() else []
        return {content["case"]: content for content in found}

    def files(self, ending: str) -> list[Path]:
        """Return the files with an ending."""
        return sorted(self.place.glob(f"*{ending}")) if self.place.is_dir() else []

    def finished(self) -> int:
        """Return the number of finished cases, read from the names of the files alone."""
        names = [path.name for path in self.place.iterdir()] if self.place.is_dir() else []
        counts = [re.search(r"-(\d+)\.safetensors$", name) for name in names]
        return sum(name.endswith(".json") for name in names) + sum(int(count[1]) for count in counts if count)

    @property
    def place(self) -> Path:
        """The folder of all these files."""
        return self.folder / "found"
