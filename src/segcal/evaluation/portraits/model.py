"""A portrait: its parts, the pixels of a case that it keeps (a regular grid that bounds its size), and its files.

On disk, inside a folder of results, portraits are JSON, and the pictures of each an `.npz`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, TypeAlias
from zipfile import BadZipFile

import numpy as np

from segcal.data.io.arrays import read_array
from segcal.files import MARKER, read_json, staged_folder, write_json
from segcal.files.guards import refuse_changed
from segcal.types import Array, InputError
from segcal.version import __version__

FORMAT = 2
"""Version of the saved form."""

FOLDER = "portraits"
"""Folder of the portraits inside a folder of results."""

Kind = Literal[
    "image",
    "truth",
    "prediction",
    "region",
    "confidence",
    "temperature",
    "gap",
    "accuracy",
    "optimum",
    "disagreement",
]
LOGARITHMIC = ("temperature", "optimum")

LEVELS = 100
NOTHING = 255
"""A map holds 0..100, from its low to its high value, and 255 where it has no value."""

_SIDE = 480
"""Pixels along the longer side of an image."""

_VOXELS = 360_000
"""Voxels of a volume, of which the page shows slices along all three axes."""


class PixelRegion(IntEnum):
    """Region of a pixel of the layer "region"; ignored pixels hold `NOTHING`."""

    OUTSIDE = 0
    ALL = 1
    BOUNDARY = 2


@dataclass(frozen=True)
class Layer:
    """One picture: bytes `[h, w]` or `[d, h, w]`, with a last axis of 3 for an image in colour.

    A map goes from `low` to `high`: "confidence", "temperature" and "gap" of a method; "accuracy" (of the bin of each
    pixel) and "optimum" (the best temperature around each pixel) of the baseline; "disagreement" (in nats) of the
    passes of the case, where a method uses them. Temperatures have equal steps of their logarithm. "truth" and
    "prediction" hold positions in the portrait's `classes`, "region" a `PixelRegion`. `method` is "" where all methods
    share the layer.
    """

    kind: Kind
    method: str
    values: Array
    low: float = 0.0
    high: float = 1.0

    def numbers(self) -> Array:
        """The map in its own unit, NaN where it has no value."""
        share = np.where(self.values == NOTHING, np.nan, self.values / LEVELS)
        if self.kind in LOGARITHMIC:
            return np.asarray(self.low * (self.high / self.low) ** share)
        return np.asarray(self.low + (self.high - self.low) * share)


Curve: TypeAlias = tuple[tuple[int, int, float], ...]
"""A reliability histogram: pixels, correct pixels and summed confidence of each bin."""


@dataclass(frozen=True)
class Patch:
    """A Local patch: its number among those of the case, first and last pixel along each axis, and its curves."""

    number: int
    start: tuple[int, ...]
    stop: tuple[int, ...]
    curves: Mapping[str, Curve]


@dataclass(frozen=True)
class Portrait:
    """Layers, curves and patches of one case.

    Attributes:
        name: Of the case.
        why: Why it was chosen.
        shape: Of the case, `*S`.
        kept: For each axis, the positions of the pixels that are kept.
        spacing: Size of a pixel along each axis; 1 where it is not known.
        window: Side of the sliding window of the gap maps.
        classes: The classes that occur; the layers of labels hold positions in this list.
        layers: The pictures.
        curves: Reliability of the whole case in the region *All*, by method.
        patches: Up to three: the worst, the middle and the best by the ECE of the baseline.
        boxes: First and last pixel along each axis of every Local patch.
        orientation: Directions of the patient in which the axes count, such as "SAR"; None if they are not known.
        channel: The channel shown, if there are several sigmoid channels; class 1 is this channel.
    """

    name: str
    why: str
    shape: tuple[int, ...]
    kept: tuple[tuple[int, ...], ...]
    spacing: tuple[float, ...]
    window: int
    classes: tuple[int, ...]
    layers: tuple[Layer, ...]
    curves: Mapping[str, Curve]
    patches: tuple[Patch, ...]
    boxes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    orientation: str | None = None
    channel: str = ""

    @property
    def title(self) -> str:
        """Name of the case, and of the channel if there are several."""
        return f"{self.name}, {self.channel}" if self.channel else self.name

    def layer(self, kind: Kind, method: str = "") -> Layer | None:
        """The layer of this kind and method, where there is one."""
        return next((layer for layer in self.layers if (layer.kind, layer.method) == (kind, method)), None)


@dataclass(frozen=True)
class Thinning:
    """Every so many pixels along each axis."""

    strides: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int]) -> Thinning:
        """The smallest strides that keep an image or a volume within its bounds.

        Examples:
            >>> Thinning.of((360, 960)), Thinning.of((20, 512, 512))
            (Thinning(strides=(2, 2)), Thinning(strides=(1, 4, 4)))
        """
        if len(shape) < 3:
            return cls((-(-max(shape) // _SIDE),) * len(shape))
        strides = [1] * len(shape)
        while (
            np.prod(lengths := [-(-length // stride) for length, stride in zip(shape, strides, strict=True)]) > _VOXELS
        ):
            strides[int(np.argmax(lengths))] += 1  # the axis with the most left can spare them best
        return cls(tuple(strides))

    def kept(self, shape: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """For each axis, the positions that are kept."""
        return tuple(tuple(range(0, length, stride)) for length, stride in zip(shape, self.strides, strict=True))

    def __call__(self, values: Array) -> Array:
        """Values `[*S, ...]` at the kept pixels."""
        return np.ascontiguousarray(values[tuple(slice(None, None, stride) for stride in self.strides)])


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
    read = {name: _as_tuples(value) for name, value in entry.items()}
    read["layers"] = tuple(Layer(**own, values=values) for own, values in zip(entry["layers"], pictures, strict=True))
    read["patches"] = tuple(Patch(**patch) for patch in read["patches"])
    return _checked(Portrait(**read))


def _as_tuples(value: Any) -> Any:
    """Return what JSON read, with tuples for its lists, as it was before it was written."""
    if isinstance(value, dict):
        return {name: _as_tuples(own) for name, own in value.items()}
    return tuple(_as_tuples(own) for own in value) if isinstance(value, list) else value


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
