"""The volumes that the stage `prepare` wrote, read with numpy alone."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.lpba40.recipes import Data
from segcal.files import MARKER, read_json
from segcal.types import Array, InputError


class Prepared(NamedTuple):
    """A volume as the experiment uses it: image `[z, y, x]` and labels, both uint8, and the voxel size."""

    name: str
    image: Array
    labels: Array
    spacing: tuple[float, ...]


class PreparedFolder:
    """The volumes that `prepare` wrote."""

    def __init__(self, root: Path, data: Data) -> None:
        self.folder = root / data
        if not (self.folder / MARKER).exists():
            raise InputError(f"'{self.folder}' holds no prepared volumes; run the stage `prepare` first")
        content = read_json(self.folder / MARKER)
        self.names, self.classes = tuple(content["names"]), tuple(content["classes"])
        self.shapes = [tuple(shape) for shape in content["shapes"]]

    def read(self, name: str) -> Prepared:
        """Read one volume."""
        with np.load(self.folder / f"{name}.npz", allow_pickle=False) as file:
            spacing = tuple(float(length) for length in file["spacing"])
            return Prepared(name, file["image"], file["labels"], spacing)
