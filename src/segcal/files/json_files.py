"""JSON and other text files: written readably, read with a limit on their size, and without NaN or infinity."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from segcal.types import InputError

_LONGEST_TEXT = 1 << 28
"""Largest JSON or TOML file that is read, in bytes."""


def write_json(path: Path, content: Any) -> None:
    """Write `content` as readable JSON, in which there is no NaN and no infinity."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # names of files that are not UTF-8 have surrogates, which JSON writes as escapes
    path.write_bytes(text.encode("utf-8", errors="backslashreplace"))


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise if it is missing or broken, or holds a number that is not finite."""
    try:
        return json.loads(read_text(path), parse_constant=_finite, parse_float=_finite)
    except FileNotFoundError as error:
        raise InputError(f"'{path}' is missing; is '{path.parent}' the right folder?") from error
    except (ValueError, OSError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"'{path}' is not readable JSON ({error}); restore it or write it again") from error


def _finite(text: str) -> float:
    """Return a number of a JSON file, which Python would read as infinity if it is too large."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def read_text(path: Path) -> str:
    """Return the content of a text file in UTF-8; raise if it is larger than any that segcal writes."""
    if (size := path.stat().st_size) > _LONGEST_TEXT:
        raise InputError(
            f"'{path}' must have at most {_LONGEST_TEXT >> 20} MiB, got {size >> 20} MiB; is it the right file?"
        )
    return path.read_text(encoding="utf-8")
