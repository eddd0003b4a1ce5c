"""A tiny tree of pictures in CamVid's layout: coloured stripes whose colour tells the class, with noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

NAMES = {
    "train": [f"0016E5_{k:05d}" for k in range(4)] + ["0001TP_006690", "0001TP_006720"],
    "val": [f"0016E5_{k:05d}" for k in range(7959, 7979, 2)],
    "test": ["0001TP_008550", "0001TP_008580", "Seq05VD_f00000", "Seq05VD_f00030", "Seq05VD_f00060"],
}


def write_camvid(root: Path, size: tuple[int, int] = (44, 60)) -> Path:
    random = np.random.default_rng(5)
    colours = random.integers(0, 256, size=(12, 3))
    for split, names in NAMES.items():
        for folder in (split, f"{split}annot"):
            (root / folder).mkdir(parents=True)
        for name in names:
            edges = np.sort(random.integers(0, size[1], size=4))
            stripes = random.permutation(12)[np.searchsorted(edges, np.arange(size[1]), side="right")]
            labels = np.broadcast_to(stripes, size).astype(np.uint8)
            picture = np.clip(colours[labels] + random.normal(0, 25, (*size, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(picture).save(root / split / f"{name}.png")
            Image.fromarray(labels).save(root / f"{split}annot" / f"{name}.png")
    return root
