"""A folder of simulated NIfTI volumes in the layout that the multi-atlas experiment reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.multi_atlas.simulated import simulated_volumes
from segcal.fusion.registration import Volume


def read_volume_file(name: str, *, folder: Path) -> Volume:
    with np.load(folder / f"{name}.npz", allow_pickle=False) as content:
        return Volume(content["image"], content["labels"], tuple(content["spacing"].tolist()))


def write_volumes(folder: Path, count: int, shape: tuple[int, ...] = (16, 18, 14)) -> Path:
    nibabel = __import__("nibabel")
    for kind in ("images", "labels"):
        (folder / kind).mkdir(parents=True)
    for k, volume in enumerate(simulated_volumes(count, shape, deformation=1.0)):
        for kind, array in (("images", volume.image * 900), ("labels", volume.labels.astype(np.uint8))):
            image = nibabel.Nifti1Image(array.T, np.diag([1.0, 1.0, 1.0, 1.0]))
            nibabel.save(image, folder / kind / f"subject{k:02d}.nii.gz")
    return folder
