"""Parts of the command lines of the experiments: parsers, exit statuses, and tables that are printed and kept."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from segcal.files import staged_file
from segcal.types import InputError


def parser_of(experiment: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of `python -m experiments.EXPERIMENT`, whose description keeps its lines."""
    raw = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(
        prog=f"python -m experiments.{experiment}", description=description, formatter_class=raw
    )


def status_of(stage: Callable[[], None]) -> int:
    """Run a stage; return the exit status: 2, after one sentence, for bad input."""
    try:
        stage()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def given(path: Path | None, option: str) -> Path:
    """Return a folder that a stage needs; raise if it was not given."""
    if path is None:
        raise InputError(f"this stage needs a folder; give it with {option}")
    return path


def show(tables: str, out: Path | None) -> None:
    """Print tables, and keep them as `tables.md` in the folder of their results, if there is one."""
    if out is not None:
        with staged_file(out / "tables.md") as file:
            file.write_text(tables + "\n", encoding="utf-8")
    print(tables)
