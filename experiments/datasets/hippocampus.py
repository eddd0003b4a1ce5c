"""Hippocampus of the Medical Segmentation Decathlon: small T1 volumes, anterior and posterior part.

Image types are mixed and intensities differ by four orders of magnitude between volumes, so normalise each volume by
itself (`experiments.lpba40.preprocessing.equalised`). The data set does not say which volumes are of one person.
"""

from __future__ import annotations

from pathlib import Path

from experiments.datasets.volumes import VolumeFolder, pairs_of

CLASSES = ("background", "anterior", "posterior")
DOWNLOAD = "unpack Task04_Hippocampus.tar of http://medicaldecathlon.com and give its folder, which holds imagesTr"


def open_hippocampus(root: str | Path) -> VolumeFolder:
    """Find the labelled volumes of `imagesTr` and `labelsTr`."""
    folder = Path(root)
    return VolumeFolder(pairs_of(folder / "imagesTr", folder / "labelsTr", hint=DOWNLOAD), CLASSES)
