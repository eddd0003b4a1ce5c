"""Portraits on disk, inside a folder of results: JSON, and the pictures of each as `.npz`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from segcal.data.io.arrays import read_array
from segcal.evaluation.portraits.model import Curve, Layer, Patch, Portrait
from segcal.files import MARKER, read_json, staged_folder, write_json
from segcal.files.guards import refuse_changed
from segcal.types import InputError
from segcal.version import __version__

FORMAT = 2
"""Version of the saved form."""

FOLDER = "portraits"
"""Folder of the portraits inside a folder of results."""


def save_portraits(portraits: Sequence[Portrait], results_folder: str | Path) -> None:
    """Write portraits into a folder of results."""
    with staged_folder(Path(results_folder) / FOLDER) as folder:
        for k, portrait in enumerate(portraits):
            layers = {f"layer{j}": layer.values for j, layer in enumerate(portrait.layers)}
            np.savez_compressed(folder / f"{k:03d}.npz", allow_pickle=False, **layers)
        listed = [_plain(portrait) for portrait in portraits]
        write_json(folder / MARKER, {"format": FORMAT, "segcal": __version__, "portraits": listed})


def load_portraits(results_folder: str | Path) -> list[Portrait]:
    """Read the portraits of a folder of results; none where none were saved."""
    folder = Path(results_folder) / FOLDER
    if not folder.exists():
        return []
    content = read_json(folder / MARKER)
    try:
        if content["format"] != FORMAT:
            raise InputError(f"the portraits in '{folder}' were saved by another version of segcal; evaluate again")
        refuse_changed(folder, [path.name for path in folder.iterdir() if path.name != MARKER], "evaluate again")
        return [_read(entry, folder / f"{k:03d}.npz") for k, entry in enumerate(content["portraits"])]
    except (KeyError, TypeError, ValueError, OSError, EOFError, BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the portraits in '{folder}' cannot be read ({error!r}); evaluate again") from error


def _plain(portrait: Portrait) -> dict[str, Any]:
    layers = [{name: value for name, value in vars(layer).items() if name != "values"} for layer in portrait.layers]
    return {**vars(portrait), "layers": layers, "patches": [vars(patch) for patch in portrait.patches]}


def _read(entry: Mapping[str, Any], path: Path) -> Portrait:
    pictures = [read_array(path, f"layer{j}") for j in range(len(entry["layers"]))]
    read = {
        "kept": tuple(tuple(positions) for positions in entry["kept"]),
        "layers": tuple(Layer(**about, values=values) for about, values in zip(entry["layers"], pictures, strict=True)),
        "curves": _curves(entry["curves"]),
        "patches": tuple(
            Patch(patch["number"], tuple(patch["start"]), tuple(patch["stop"]), _curves(patch["curves"]))
            for patch in entry["patches"]
        ),
        "boxes": tuple((tuple(start), tuple(stop)) for start, stop in entry["boxes"]),
    }
    plain = {name: tuple(entry[name]) for name in ("shape", "spacing", "classes")}
    return _checked(Portrait(**{**entry, **plain, **read}))


def _checked(portrait: Portrait) -> Portrait:
    """Return a portrait that can be drawn; raise if its numbers or pictures cannot be those of an image."""
    positions = (*portrait.shape, *portrait.classes, *(place for axis in portrait.kept for place in axis))
    if not all(isinstance(number, int) and number >= 0 for number in positions):
        raise ValueError("shape, classes and positions must be whole numbers")
    if portrait.orientation is not None and not _is_orientation(portrait.orientation, len(portrait.shape)):
        raise ValueError(f"orientation must be three directions such as SAR, got {portrait.orientation!r}")
    size = tuple(len(axis) for axis in portrait.kept)
    for layer in portrait.layers:
        shapes = (size, (*size, 3)) if layer.kind == "image" else (size,)
        if layer.values.dtype != np.uint8 or layer.values.shape not in shapes:
            raise ValueError(f"layer {layer.kind} must have bytes of shape {size}, got {layer.values.shape}")
    return portrait


def _is_orientation(letters: object, axes: int) -> bool:
    pairs = {"L": "LR", "R": "LR", "A": "AP", "P": "AP", "S": "SI", "I": "SI"}
    return isinstance(letters, str) and axes == 3 and {pairs.get(letter) for letter in letters} == {"LR", "AP", "SI"}


def _curves(of: Mapping[str, Any]) -> dict[str, Curve]:
    return {method: tuple((count, hit, sure) for count, hit, sure in curve) for method, curve in of.items()}
