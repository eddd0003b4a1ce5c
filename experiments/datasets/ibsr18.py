"""IBSR18: T1 volumes of the human brain with cerebrospinal fluid, grey and white matter.

Files have a fourth axis of length one. Most IBSR labels count only the ventricles as cerebrospinal fluid.
"""

from __future__ import annotations

from pathlib import Path

from experiments.datasets.volumes import VolumeFolder, pairs_of

CLASSES = ("background", "CSF", "grey matter", "white matter")
DOWNLOAD = (
    "give a folder with images/NAME.nii.gz and labels/NAME.nii.gz of IBSR18 (https://www.nitrc.org/projects/ibsr)"
)


def open_ibsr18(root: str | Path) -> VolumeFolder:
    """Find the volumes of `images` and `labels`."""
    folder = Path(root)
    return VolumeFolder(pairs_of(folder / "images", folder / "labels", hint=DOWNLOAD), CLASSES)
