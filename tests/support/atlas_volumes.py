"""Folders of simulated volumes in the layouts that the multi-atlas experiment reads."""

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


def write_lpba40(folder: Path, subjects: tuple[str, ...], shape: tuple[int, ...] = (16, 18, 16)) -> Path:
    """Write skull-stripped volumes as LPBA40's: Analyze pairs with a fourth axis of one; and a template beside them."""
    nibabel = __import__("nibabel")
    values = np.array([0, 21, 22, 182], np.uint8)
    for subject, volume in zip(subjects, simulated_volumes(len(subjects), shape, deformation=1.0), strict=True):
        home = folder / "delineation_space" / subject
        home.mkdir(parents=True)
        image = (900 * volume.image * (volume.labels > 0)).astype(np.int16)
        for kind, array in (("skullstripped", image), ("structure.label", values[volume.labels])):
            pair = nibabel.AnalyzeImage(array.T[..., None], np.diag([1.0, 1.0, 1.0, 1.0]))
            nibabel.save(pair, home / f"{subject}.delineation.{kind}.img")
    first = nibabel.load(folder / "delineation_space" / subjects[0] / f"{subjects[0]}.delineation.skullstripped.img")
    nibabel.save(nibabel.Nifti1Image(np.asarray(first.dataobj)[..., 0], first.affine), folder / "template.nii.gz")
    return folder
