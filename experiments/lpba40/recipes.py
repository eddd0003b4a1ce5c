"""Presets of data, network and schedule, and the jobs that they make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from experiments.datasets.splits import NestedFold, nested_cross_validation, shuffled_parts
from experiments.lpba40.tiling import CENTRE, FOREGROUND, PATCH
from segcal.networks.unet3d import UNet3D

Data = Literal["lpba40", "hippocampus", "mouse_brain"]
Network = Literal["paper", "medium", "small", "tiny"]

_NETWORKS: dict[Network, tuple[int, int]] = {"paper": (32, 4), "medium": (16, 4), "small": (8, 4), "tiny": (4, 3)}
"""Width and number of levels of each network."""


@dataclass(frozen=True)
class Recipe:
    """Settings of one preset; the defaults are the paper's.

    Args:
        data: Data set, as `prepare` calls it.
        volumes: How many of its volumes are used, drawn by the seed; None for all.
        validation: Volumes that each network is validated on.
        network: Size of the 3D U-Net.
        patch: Side of the training patches; an axis that is shorter is taken whole.
        centre: Side of the part of a patch that is kept in prediction.
        foreground: Least share of foreground in a training patch.
        flips: Whether training volumes are flipped along random axes, as by nnU-Net; not in the paper.
        repeats: Patches of each volume in an epoch.
        epochs: Of the network.
        milestones: Epochs after which its learning rate falls to a tenth.
        learning_rate: Of the network, with Adam.
        batch_size: Patches in a step.
        precision: Of the network's training.
        calibrator_epochs: Of IBTS, LTS and the candidates of `auto`.
        calibrator_crop: Side of the random crops that they are trained on; None for whole volumes. Validation is on
            whole volumes in any case.
        rates: Learning rates of IBTS and LTS; the one of least NLL on the validation volumes is kept.
    """

    data: Data
    volumes: int | None = None
    validation: int = 3
    network: Network = "paper"
    patch: int = PATCH
    centre: int = CENTRE
    foreground: float = FOREGROUND
    flips: bool = False
    repeats: int = 1
    epochs: int = 300
    milestones: tuple[int, ...] = (150, 250)
    learning_rate: float = 1e-3
    batch_size: int = 4
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    calibrator_epochs: int = 200
    calibrator_crop: int | None = None
    rates: tuple[float, ...] = (1e-4, 1e-3)

    def unet(self, num_classes: int) -> UNet3D:
        """Return a new network."""
        width, levels = _NETWORKS[self.network]
        return UNet3D(num_classes, width=width, levels=levels)


PRESETS = {
    "lpba40": Recipe("lpba40", volumes=40, repeats=8, calibrator_epochs=100, calibrator_crop=72),
    "hippocampus": Recipe("hippocampus", volumes=40, network="small"),
    "hippocampus-200": Recipe(
        "hippocampus", validation=15, network="small", epochs=100, milestones=(50, 80), calibrator_epochs=40
    ),
    "hippocampus-mirrored": Recipe(
        "hippocampus",
        validation=15,
        network="tiny",
        flips=True,
        epochs=6,
        milestones=(4,),
        learning_rate=1e-2,
        batch_size=2,
        precision="float32",
    ),
    "mouse": Recipe(
        "mouse_brain", validation=2, network="medium", repeats=2, calibrator_epochs=100, calibrator_crop=48
    ),
}
"""The paper's protocol on its own data; on 40 and on all hippocampus volumes; on these with tiny networks, which a CPU
trains in minutes, and flips as by nnU-Net; and on 17 mouse brains."""


def small(recipe: Recipe) -> Recipe:
    """Return a recipe that a CPU finishes in minutes: fewer volumes, a tiny network, few epochs."""
    return replace(
        recipe,
        volumes=9,
        validation=1,
        network="tiny",
        patch=32,
        centre=16,
        repeats=1,
        epochs=6,
        milestones=(4,),
        learning_rate=1e-2,
        precision="float32",
        calibrator_epochs=3,
        calibrator_crop=None,
        rates=(1e-3,),
    )


@dataclass(frozen=True)
class Job:
    """One preset with one seed; its networks are the folds of the outer cross-validation."""

    preset: str
    seed: int
    small: bool = False

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.preset}{'-small' * self.small}-seed{self.seed}"

    @property
    def recipe(self) -> Recipe:
        """Settings of its preset."""
        return small(PRESETS[self.preset]) if self.small else PRESETS[self.preset]

    def split(self, names: tuple[str, ...]) -> tuple[NestedFold, ...]:
        """Return the nested cross-validation of the volumes that this job uses."""
        recipe = self.recipe
        (used,) = shuffled_parts(names, (min(recipe.volumes or len(names), len(names)),), seed=self.seed)
        return nested_cross_validation(used, validation=recipe.validation, seed=self.seed)

    def folder(self, root: Path, fold: int) -> Path:
        """Return the folder of one network below `root`."""
        return root / self.name / f"fold-{fold}"
