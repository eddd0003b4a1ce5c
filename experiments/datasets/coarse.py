"""A folder of scores that are coarser than their labels, as networks give them: interpolated when a case is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812  (the name it has everywhere)

from experiments.datasets.files import by_name
from segcal.data.io.formats import IMAGES, file_at
from segcal.data.io.pictures import read_image_picture, read_label_picture
from segcal.types import Array, Case, InputError

_HINT = "give a folder that holds logits, labels and images"


@dataclass(frozen=True)
class CoarseFolder(Sequence[Case]):
    """Cases of `logits/NAME.npz|npy` `[L, h, w]`, `labels/NAME.png` `[H, W]` and pictures; made by `open_coarse`."""

    logits: dict[str, Path]
    labels: dict[str, Path]
    images: dict[str, Path]

    @property
    def names(self) -> tuple[str, ...]:
        """In order."""
        return tuple(self.logits)

    def __len__(self) -> int:
        return len(self.logits)

    @overload
    def __getitem__(self, index: int) -> Case: ...
    @overload
    def __getitem__(self, index: slice) -> CoarseFolder: ...
    def __getitem__(self, index: int | slice) -> Case | CoarseFolder:
        """One case, its logits interpolated bilinearly to the size of the labels; or a part of the folder."""
        if isinstance(index, slice):
            return self.subset(self.names[index])
        name = self.names[index]
        path = self.logits[name]
        coarse = file_at(path).read("logits")
        labels = read_label_picture(self.labels[name])
        image = read_image_picture(self.images[name])
        return Case(name, interpolated(coarse, labels.shape), labels, image if len(image) == 3 else image.repeat(3, 0))

    def subset(self, names: Iterable[str]) -> CoarseFolder:
        """The cases called `names`, in that order."""
        return replace(self, logits={name: self.logits[name] for name in names})


def open_coarse(root: str | Path, *, images: str | Path | None = None) -> CoarseFolder:
    """Look for the cases of `logits/`; each must have its labels in `labels/` and its picture in `images`."""
    folder = Path(root)
    found = {
        "logits": by_name(folder / "logits", (".npz", ".npy"), _HINT),
        "labels": by_name(folder / "labels", (".png",), _HINT),
        "images": by_name(folder / "images" if images is None else Path(images), IMAGES, _HINT),
    }
    for name in found["logits"]:
        for what in ("labels", "images"):
            if name not in found[what]:
                raise InputError(f"case '{name}' of '{folder}' must have {what}, got none; add them or drop its logits")
    return CoarseFolder(**found)


def interpolated(logits: Array, size: Sequence[int]) -> Array:
    """Logits `[L, h, w]` as float32 `[L, H, W]`, bilinearly as torchvision's networks do inside."""
    wide = torch.from_numpy(np.array(logits, dtype=np.float32))
    if wide.shape[1:] == tuple(size):
        return wide.numpy()
    return F.interpolate(wide[None], size=tuple(size), mode="bilinear", align_corners=False)[0].numpy()
