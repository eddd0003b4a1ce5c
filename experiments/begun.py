"""Guard of resumed runs: the options must be those that the run was started with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segcal.types import InputError


def check_unchanged(folder: Path, begun: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise if an option that a folder's file names has another value now."""
    now = json.loads(json.dumps(asked))  # as the file has it: no tuples
    for name, value in begun.items():
        if value != now.get(name):
            raise InputError(
                f"'{folder}' was begun with {name}={value}, and now it is {now.get(name)}; "
                "give the same options or another --out"
            )
