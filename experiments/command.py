"""Parts that the commands of the experiments share: parsers, exit statuses, tables, and guards of resumed runs."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from segcal.files import staged_file
from segcal.training.settings import Epoch, Watch
from segcal.types import InputError
from segcal.version import __version__


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


def announce(title: str, times: int) -> Watch:
    """Return a function that prints the losses of an epoch, about so many times in all."""

    def watch(epoch: Epoch) -> None:
        if epoch.number % max(1, epoch.of // times) == 0 or epoch.number == epoch.of:
            validation = "" if epoch.validation is None else f", validation {epoch.validation:.4f}"
            text = f"{title}: epoch {epoch.number}/{epoch.of}, loss {epoch.loss:.4f}{validation}, {epoch.seconds:.1f} s"
            print(text, flush=True)

    return watch


def show(tables: str, out: Path | None) -> None:
    """Print tables, and keep them as `tables.md` in the folder of their results, if there is one."""
    if out is not None:
        with staged_file(out / "tables.md") as file:
            file.write_text(tables + "\n", encoding="utf-8")
    print(tables)


def check_unchanged(folder: Path, begun: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise if an option that a folder's file names has another value now."""
    now = json.loads(json.dumps(asked))  # as the file has it: no tuples
    for name, value in begun.items():
        if value != now.get(name):
            raise InputError(
                f"'{folder}' was begun with {name}={value}, and now it is {now.get(name)}; "
                "give the same options or another --out"
            )


def versions() -> dict[str, Any]:
    """Return the versions of segcal and its libraries, and the device, that produced results."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "segcal": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": device,
    }
