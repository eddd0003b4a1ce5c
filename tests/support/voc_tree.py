"""Scores as of VOC: some of its 21 classes, half as large as the labels and often wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def write_voc(root: Path, classes: Sequence[int], count: int) -> Path:
    """Write `logits`, `labels` and `images` of images whose labels are stripes of some classes."""
    random = np.random.default_rng(0)
    for folder in ("logits", "labels", "images"):
        (root / folder).mkdir()
    for k in range(count):
        labels = np.repeat(random.choice(classes, size=6), 4).astype(np.uint8)[None].repeat(20, 0)
        logits = 3 * np.eye(21)[labels[::2, ::2]].transpose(2, 0, 1) + random.normal(0, 1.5, (21, 10, 12))
        np.save(root / "logits" / f"{k:02d}.npy", logits.astype(np.float16))
        Image.fromarray(labels).save(root / "labels" / f"{k:02d}.png")
        Image.fromarray(random.integers(0, 255, (20, 24, 3), dtype=np.uint8)).save(root / "images" / f"{k:02d}.jpg")
    return root
