"""COCO with the 20 classes of VOC, everything else background (Sec. 4.1): labels drawn from the annotations.

As for the network that the paper takes from torchvision: the classes are numbered as VOC does, and where two instances
overlap, nobody can tell which one is meant, so those pixels are void.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.datasets.voc import CLASSES, VOID
from segcal.data.io.pictures import read_image_picture
from segcal.files import read_json
from segcal.types import Array, InputError

DOWNLOAD = (
    "unpack http://images.cocodataset.org/zips/val2017.zip and "
    "http://images.cocodataset.org/annotations/annotations_trainval2017.zip into one folder, "
    "which then holds val2017 and annotations"
)
SIZES = (3500, 500, 1000)
"""Sizes of the paper's parts of val2017: to fit on, to choose the epoch by, to measure. It does not say which."""

_NAMES = {
    "aeroplane": "airplane",
    "diningtable": "dining table",
    "motorbike": "motorcycle",
    "pottedplant": "potted plant",
    "sofa": "couch",
    "tvmonitor": "tv",
}
"""Classes that COCO calls by another name than VOC."""
_FINE = 5
"""Outlines are followed on a grid so many times finer than the pixels, as COCO's own tools do."""


@dataclass(frozen=True)
class Coco:
    """Pictures of one split and their annotations; made by `open_coco`."""

    pictures: Mapping[str, Path]
    sizes: Mapping[str, tuple[int, int]]
    annotations: Mapping[str, Sequence[tuple[int, Any]]]
    """Class and outline of every instance of a VOC class, by picture."""

    @property
    def names(self) -> tuple[str, ...]:
        """In order."""
        return tuple(self.pictures)

    def image(self, name: str) -> Array:
        """The picture `[3, H, W]`, float32 in 0..1; grey ones have three equal channels."""
        image = read_image_picture(self.pictures[name])
        return np.repeat(image, 3, axis=0) if image.shape[0] == 1 else image[:3]

    def labels(self, name: str) -> Array:
        """The labels `[H, W]`: 0 background, 1 to 20, 255 where instances overlap."""
        labels = np.zeros(self.sizes[name], np.uint8)
        covered = np.zeros(self.sizes[name], bool)
        for kind, outline in self.annotations.get(name, ()):
            mask = mask_of(outline, self.sizes[name])
            labels[mask] = np.where(covered[mask], VOID, kind)
            covered |= mask
        return labels


def open_coco(root: str | Path, split: str = "val2017") -> Coco:
    """Look for the pictures that `annotations/instances_SPLIT.json` lists."""
    folder = Path(root)
    file = folder / "annotations" / f"instances_{split}.json"
    if not file.is_file():
        raise InputError(f"'{file}' is missing; {DOWNLOAD}")
    content = read_json(file)
    kinds = _kinds(content["categories"], file)
    names = {entry["id"]: Path(entry["file_name"]).stem for entry in content["images"]}
    pictures = {names[entry["id"]]: folder / split / entry["file_name"] for entry in content["images"]}
    for path in pictures.values():
        if not path.is_file():
            raise InputError(f"'{path}' is missing, and '{file}' lists it; {DOWNLOAD}")
    annotations: dict[str, list[tuple[int, Any]]] = {}
    for entry in content["annotations"]:
        if entry["category_id"] in kinds:
            outline = kinds[entry["category_id"]], entry["segmentation"]
            annotations.setdefault(names[entry["image_id"]], []).append(outline)
    sizes = {names[entry["id"]]: (int(entry["height"]), int(entry["width"])) for entry in content["images"]}
    return Coco(dict(sorted(pictures.items())), sizes, annotations)


def mask_of(outline: Any, size: tuple[int, int]) -> Array:
    """The pixels `[H, W]` of an annotation: polygons, or run lengths as numbers or as COCO's letters."""
    if isinstance(outline, list):
        parts = [polygon_mask(np.array(part, np.float64).reshape(-1, 2), size) for part in outline]
        return np.asarray(np.any(np.stack([np.zeros(size, bool), *parts]), axis=0))
    counts = outline["counts"]
    if tuple(outline["size"]) != size:
        raise InputError(f"run lengths must be of a picture of size {size}, got {tuple(outline['size'])}")
    return runs_mask(runs_of_letters(counts) if isinstance(counts, str) else counts, size)


def runs_mask(runs: Sequence[int], size: tuple[int, int]) -> Array:
    """Pixels from run lengths, which go down the columns and begin with what is outside.

    >>> runs_mask([1, 2, 1], (2, 2)).astype(int).tolist()
    [[0, 1], [1, 0]]
    """
    if sum(runs) != size[0] * size[1]:
        raise InputError(f"run lengths must sum to the {size[0] * size[1]} pixels of {size}, got {sum(runs)}")
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(size[::-1]).T


def runs_of_letters(letters: str) -> list[int]:
    """Run lengths from COCO's letters: six bits each, of which five are the number and one says that more follow.

    From the third on, a number is the difference to the one two before.

    >>> runs_of_letters("121")
    [1, 2, 1]
    """
    runs: list[int] = []
    value = shift = 0
    for letter in letters:
        bits = ord(letter) - 48
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    return runs


def polygon_mask(points: Array, size: tuple[int, int]) -> Array:
    """Pixels inside a polygon of points `[N, 2]`, x and y, to the pixel as COCO's own tools draw it.

    The outline is followed on a fine grid. Wherever it crosses the middle of a column of pixels, all pixels below
    change sides.
    """
    height, width = size
    corners = np.trunc(_FINE * points + 0.5).astype(np.int64)
    walks = [_walk(start, end) for start, end in zip(corners, np.roll(corners, -1, axis=0), strict=True)]
    x, y = np.concatenate(walks).T
    moved = x[1:] != x[:-1]
    column = (np.where(x[1:] < x[:-1], x[1:], x[1:] - 1) + 0.5) / _FINE - 0.5
    row = np.ceil(np.clip((np.minimum(y[1:], y[:-1]) + 0.5) / _FINE - 0.5, 0, height)).astype(np.int64)
    crossing = moved & (np.floor(column) == column) & (column >= 0) & (column <= width - 1)
    turns = column[crossing].astype(np.int64) * height + row[crossing]
    sides = np.cumsum(np.bincount(turns, minlength=height * width + 1)) % 2
    return sides[: height * width].astype(bool).reshape(width, height).T


def _walk(start: Array, end: Array) -> Array:
    """The points of a straight line on the grid, one for each step along its longer axis."""
    span = np.abs(end - start)
    longer = 0 if span[0] >= span[1] else 1
    steps = int(span[longer])
    if steps == 0:
        return start[None]
    low, high = (start, end) if start[longer] <= end[longer] else (end, start)
    along = np.arange(steps + 1)
    points = np.empty((steps + 1, 2), np.int64)
    points[:, longer] = low[longer] + along
    slope = (high[1 - longer] - low[1 - longer]) / steps
    points[:, 1 - longer] = np.trunc(low[1 - longer] + slope * along + 0.5)
    return points if start[longer] <= end[longer] else points[::-1]


def _kinds(categories: Sequence[Mapping[str, Any]], file: Path) -> dict[int, int]:
    """VOC's class of each category of COCO that has one."""
    found = {entry["name"]: entry["id"] for entry in categories}
    wanted = {_NAMES.get(name, name): kind for kind, name in enumerate(CLASSES) if kind}
    if missing := sorted(wanted.keys() - found.keys()):
        raise InputError(f"'{file}' must have the category '{missing[0]}', got none of that name; {DOWNLOAD}")
    return {found[name]: kind for name, kind in wanted.items()}
