"""LPBA40: 40 T1 volumes of the human brain with 56 structures (Shattuck et al. 2008; appendix "Implementation").

The data set is licensed to each user. Reading takes the files of "LPBA40 Subjects Delineation Space" as they are
published: Analyze or NIfTI, with a fourth axis of length one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from experiments.datasets.volumes import VolumeFolder
from segcal.types import InputError

SUBJECTS = tuple(f"S{number:02d}" for number in range(1, 41))
STRUCTURES: dict[int, str] = {}
"""Name of each label of the files; odd labels are on the left, even ones on the right, 181 and 182 on neither."""

_PAIRS = {
    21: "superior frontal gyrus",
    23: "middle frontal gyrus",
    25: "inferior frontal gyrus",
    27: "precentral gyrus",
    29: "middle orbitofrontal gyrus",
    31: "lateral orbitofrontal gyrus",
    33: "gyrus rectus",
    41: "postcentral gyrus",
    43: "superior parietal gyrus",
    45: "supramarginal gyrus",
    47: "angular gyrus",
    49: "precuneus",
    61: "superior occipital gyrus",
    63: "middle occipital gyrus",
    65: "inferior occipital gyrus",
    67: "cuneus",
    81: "superior temporal gyrus",
    83: "middle temporal gyrus",
    85: "inferior temporal gyrus",
    87: "parahippocampal gyrus",
    89: "lingual gyrus",
    91: "fusiform gyrus",
    101: "insular cortex",
    121: "cingulate gyrus",
    161: "caudate",
    163: "putamen",
    165: "hippocampus",
}
for _label, _name in _PAIRS.items():
    STRUCTURES[_label], STRUCTURES[_label + 1] = f"left {_name}", f"right {_name}"
STRUCTURES |= {181: "cerebellum", 182: "brainstem"}

CLASSES = ("background", *STRUCTURES.values())
DOWNLOAD = (
    "ask LONI (https://www.loni.usc.edu/research/atlases) for LPBA40 and give the folder delineation_space of "
    "'LPBA40 Subjects Delineation Space: MRI and label files', which holds S01 to S40"
)
_IMAGE, _LABELS = "delineation.skullstripped", "delineation.structure.label"
_ENDINGS = (".nii.gz", ".nii", ".img.gz", ".img")


def open_lpba40(root: str | Path, *, subjects: tuple[str, ...] = SUBJECTS) -> VolumeFolder:
    """Find the skull-stripped volume and the labels of each subject.

    Values in the label files that name no structure (a few voxels at the edges of drawings) count as background.

    Args:
        root: The folder `delineation_space`, or one above it.
        subjects: Which subjects must be there; all 40 by default.
    """
    folder = Path(root)
    places = (folder, folder / "delineation_space", folder / "LPBA40" / "delineation_space")
    home = next((place for place in places if (place / subjects[0]).is_dir()), None)
    if home is None:
        raise InputError(f"'{folder}' must hold the folder {subjects[0]}, and does not; {DOWNLOAD}")
    files = {name: (_found(home, name, _IMAGE), _found(home, name, _LABELS)) for name in subjects}
    return VolumeFolder(files, CLASSES, (0, *STRUCTURES), stray=True)


def _found(home: Path, subject: str, kind: str) -> Path:
    candidates: Iterator[Path] = (home / subject / f"{subject}.{kind}{ending}" for ending in _ENDINGS)
    found = next((path for path in chain(candidates) if path.is_file()), None)
    if found is None:
        raise InputError(f"'{home / subject}' must hold {subject}.{kind}.img (or .nii), and does not; {DOWNLOAD}")
    return found
