"""Saved calibrators: a folder with settings and report as JSON and learned values as safetensors, checked when loaded.

Nothing in such a folder is trusted: files may be cut, changed or made up. Names and shapes in the header of the learned
values are compared with what the method expects before memory is taken for either, learned values must be numbers, and
a checksum in the JSON must be that of the whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from segcal.calibrators.report import FitReport
from segcal.files import LISTED, MARKER, read_json, refuse_special, write_json
from segcal.files.guards import checksum, listed_files
from segcal.files.reading import FLAG, NUMBER, TABLE, TEXT, WHOLE, list_of, optional, problem, record
from segcal.types import InputError
from segcal.version import __version__

FORMAT = 1
"""Version of the file format; raised when an older segcal could not read a newer file."""

WEIGHTS = "weights.safetensors"

_LARGEST = 1 << 34
"""Size in bytes of the largest file of learned values that is read."""

_PIECE = 1 << 20
"""Bytes that are hashed at a time."""

FIT = {
    "cases": WHOLE,
    "pixels": WHOLE,
    "nll_before": NUMBER,
    "nll_after": NUMBER,
    "steps": WHOLE,
    "seconds": NUMBER,
    "converged": FLAG,
    "warnings": list_of(TEXT),
    "details": TABLE,
}
"""Fields of a saved fit report except for those that tell its cases apart."""

_REPORT = {**FIT, "names": list_of(TEXT), "fingerprints": list_of(TEXT)}
_SAVED = {
    "format": WHOLE,
    "segcal": TEXT,
    "method": TEXT,
    "config": TABLE,
    "report": optional(record(_REPORT)),
    "checksum": TEXT,
}
_MAY_BE_INFINITE = ("inverse_temperature", "inverse_temperatures")
"""Learned values that are infinite where every pixel is predicted right."""


def write_calibrator(
    folder: Path, method: str, config: Mapping[str, Any], report: FitReport | None, values: Mapping[str, Tensor]
) -> None:
    """Write a fitted calibrator into a folder: settings, report and learned values."""
    # not `save_file`, which makes the file private
    (folder / WEIGHTS).write_bytes(save({name: value.contiguous() for name, value in values.items()}))
    content = {
        "format": FORMAT,
        "segcal": __version__,
        "method": method,
        "config": config,
        "report": None if report is None else asdict(report),
    }
    write_json(folder / MARKER, {**content, "checksum": _checksum(content, folder / WEIGHTS)})


def read_content(folder: Path) -> dict[str, Any]:
    """Return the settings and the report in a folder; raise unless they are those of a calibrator."""
    content = read_json(folder / MARKER)
    if problem(content, record(_SAVED)) or content.keys() - {LISTED} != _SAVED.keys():
        raise InputError(foreign(folder))
    if content["format"] > FORMAT:
        raise InputError(f"'{folder}' was saved by segcal {content['segcal']}, newer than this one; update segcal")
    if content["report"] is not None and content["report"].keys() != _REPORT.keys():
        raise InputError(foreign(folder))
    found: dict[str, Any] = content
    return found


def read_shapes(folder: Path) -> dict[str, Tensor]:
    """Return the learned values in a folder as their header declares them: single numbers, and the shapes of others."""
    with _readable(folder):
        refuse_special(folder / WEIGHTS)
        if (folder / WEIGHTS).stat().st_size > _LARGEST:
            raise InputError(f"the learned values of '{folder}' must have at most {_LARGEST >> 30} GiB, got more")
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            return {
                name: torch.empty(shape, device="meta") if shape else file.get_tensor(name)
                for name, shape in shapes.items()
            }


def read_values(folder: Path, content: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the learned values in a folder; raise unless the checksum in its `content` is right."""
    with _readable(folder):
        listed = listed_files(folder) if LISTED in content else {WEIGHTS: checksum(folder / WEIGHTS)}
        if content["checksum"] != _checksum(content, folder / WEIGHTS) or listed != {
            WEIGHTS: checksum(folder / WEIGHTS)
        }:
            raise InputError(
                f"the calibrator in '{folder}' must be as it was saved, got another checksum: it was changed or "
                "damaged; fit and save it again"
            )
        return load_file(folder / WEIGHTS)


def fill(calibrator: nn.Module, values: Mapping[str, Tensor], folder: Path) -> None:
    """Give a calibrator its learned values; raise unless names, shapes and kinds of numbers are as it expects."""
    with _readable(folder):
        for name, value in calibrator.state_dict().items():  # PyTorch would convert, and warn of complex numbers
            own = values.get(name, value)
            if not own.is_meta and (own.is_complex() or own.is_floating_point() != value.is_floating_point()):
                raise TypeError(f"'{name}' must be {value.dtype}, got {own.dtype}")
        calibrator.load_state_dict(dict(values))


def check_values(values: Mapping[str, Tensor], reason: str | None, folder: Path) -> None:
    """Raise unless every learned value is a number, those of a fitted method, and there is no `reason` against them."""
    for name, value in values.items():
        infinite = name.rpartition(".")[2] in _MAY_BE_INFINITE
        if value.is_floating_point() and bool((value.isnan() if infinite else ~value.isfinite()).any()):
            raise InputError(
                f"the learned values of '{folder}' must be finite, got NaN or infinity in '{name}'; fit again"
            )
    if not values["fitted"]:
        raise InputError(f"the calibrator in '{folder}' must be fitted, got one that is not; fit it, and save it again")
    if reason:
        raise InputError(f"the learned values of '{folder}' cannot be used: {reason}; fit and save it again")


def foreign(folder: Path) -> str:
    """Return what is said of a folder that is something else."""
    return f"'{folder}' is not a saved calibrator; give the folder that 'segcal fit' or save() wrote"


def _checksum(content: Mapping[str, Any], weights: Path) -> str:
    """Return the SHA-256 of everything that is saved, except for the checksum itself."""
    rest = {key: value for key, value in content.items() if key not in ("checksum", LISTED)}
    found = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    with weights.open("rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Refuse learned values that cannot be read, with the reason."""
    try:
        yield
    except InputError:
        raise
    except (OSError, RuntimeError, TypeError, ValueError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(
            f"the learned values of '{folder}' cannot be read ({reason}); fit and save it again"
        ) from error
