"""PASCAL VOC 2012: 20 classes and background, void at the outlines; the classes of the paper's COCO experiment too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from segcal.data.io.pictures import read_image_picture, read_label_picture
from segcal.types import Array, InputError

CLASSES = (
    "background",
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)
BACKGROUND, VOID = 0, 255
DOWNLOAD = (
    "unpack http://host.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar and give its folder "
    "VOCdevkit/VOC2012, which holds JPEGImages, SegmentationClass and ImageSets"
)


@dataclass(frozen=True)
class Voc:
    """Pictures and labels of one list of VOC; made by `open_voc`."""

    files: Mapping[str, tuple[Path, Path]]

    @property
    def names(self) -> tuple[str, ...]:
        """As they are listed."""
        return tuple(self.files)

    def image(self, name: str) -> Array:
        """The picture `[3, H, W]`, float32 in 0..1."""
        return read_image_picture(self.files[name][0])

    def labels(self, name: str) -> Array:
        """The labels `[H, W]`: 0 background, 1 to 20, 255 void."""
        labels = read_label_picture(self.files[name][1])
        if bad := set(np.unique(labels).tolist()) - {*range(len(CLASSES)), VOID}:
            raise InputError(f"labels must be in 0..20 or 255, got {min(bad)} in '{self.files[name][1]}'; {DOWNLOAD}")
        return labels


def open_voc(root: str | Path, split: str = "val") -> Voc:
    """Look for the pictures and labels that `ImageSets/Segmentation/SPLIT.txt` lists."""
    folder = Path(root)
    listed = folder / "ImageSets" / "Segmentation" / f"{split}.txt"
    if not listed.is_file():
        raise InputError(f"'{listed}' is missing; {DOWNLOAD}")
    files = {
        name: (folder / "JPEGImages" / f"{name}.jpg", folder / "SegmentationClass" / f"{name}.png")
        for name in listed.read_text(encoding="utf-8").split()
    }
    for path in (path for pair in files.values() for path in pair):
        if not path.is_file():
            raise InputError(f"'{path}' is missing, and '{listed}' lists it; {DOWNLOAD}")
    return Voc(files)
