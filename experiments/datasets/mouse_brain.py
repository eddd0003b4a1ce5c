"""In-vivo T2 volumes of mouse brains with 37 structures (Ma et al. 2014, 2019), left and right apart.

The labels come from multi-atlas segmentation with manual correction, so they favour registration-based methods. The
name of a volume ends with its cohort: UT, TT or WT.
"""

from __future__ import annotations

import csv
from pathlib import Path

from experiments.datasets.volumes import VolumeFolder, pairs_of
from segcal.types import InputError

MIDLINE = (2, 10, 17)
"""Structures that are not divided into left and right."""

_LEFT = 20
DOWNLOAD = "give a folder with images/NAME.nii.gz, labels/NAME.nii.gz and structures.csv (Ma et al. 2014, 2019)"


def open_mouse_brain(root: str | Path) -> VolumeFolder:
    """Find the volumes of `images` and `labels`, and name their classes by `structures.csv`."""
    folder = Path(root)
    names = {0: "background", **_structures(folder / "structures.csv")}
    files = pairs_of(folder / "images", folder / "labels", hint=DOWNLOAD)
    return VolumeFolder(files, tuple(names.values()), tuple(names))


def _structures(path: Path) -> dict[int, str]:
    """Return the name of each label: the right side as listed, the left side 20 above it."""
    if not path.is_file():
        raise InputError(f"'{path}' is missing; {DOWNLOAD}")
    with path.open(newline="", encoding="utf-8") as file:
        listed = {int(row[0]): row[1].strip() for row in csv.reader(file) if len(row) == 2 and row[0].strip().isdigit()}
    if sorted(listed) != list(range(1, _LEFT + 1)):
        raise InputError(f"'{path}' must name the labels 1 to {_LEFT}, got {len(listed)} names; {DOWNLOAD}")
    paired = {label: name for label, name in listed.items() if label not in MIDLINE}
    right = {label: name if label in MIDLINE else f"{name}, right" for label, name in listed.items()}
    return {**right, **{label + _LEFT: f"{name}, left" for label, name in paired.items()}}
