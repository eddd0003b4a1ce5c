"""Jobs and recipes: a job is one network, one loss and one seed, with its own folder; a recipe says how it is run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from experiments.beside_paper import CITED
from experiments.camvid.fc_densenet import FCDenseNet, fc_densenet
from experiments.datasets.camvid import CLASSES, VOID, ValidationFrames
from experiments.fitting import NAMES
from segcal.losses import FocalLoss, MMCELoss, PixelLoss
from segcal.types import InputError

Network = Literal["56", "67", "103", "tiny"]
Loss = Literal["ce", "focal", "focal-cited", "mmce", "mmce-cited", "mmce-weighted"]

LOSSES: dict[Loss, str] = {
    "ce": "",
    "focal": "FL",
    "focal-cited": f"FL{CITED}",
    "mmce": "MMCE",
    "mmce-cited": f"MMCE{CITED}",
    "mmce-weighted": "MMCE weighted",
}
"""Name of a network that was trained with each loss in the table; *cited* names the settings of
the code that the paper cites."""
_GAMMAS: dict[Loss, float] = {"focal": 3.0, "focal-cited": 1.0}


@dataclass(frozen=True)
class Recipe:
    """Settings of the training of a network and of the fits of its calibrators.

    No frame of `val` or `test` influences the training: its length is fixed, and the averaged weights of its last epoch
    are used, with batch-normalisation statistics of the whole training frames. Network, dropout, batches of three crops
    before whole frames, flips and loss are those of the publication; optimiser, schedule and the mild changes of scale
    and colour suit a training of 210 epochs instead of 850.

    Args:
        epochs: Passes over the training frames.
        full_epochs: How many of them, at the end, are on whole frames rather than on crops.
        crop: Side of the crops.
        scales: Smallest and largest factor of size; whole frames are scaled half as far.
        colour: Strength of the change of colour: at 1, up to 30% in brightness, saturation and contrast; 0 for none.
        batch_size: Frames in a step.
        learning_rate: Largest learning rate of AdamW.
        weight_decay: Weight decay of AdamW.
        average: Decay of the averaged weights (see `segcal.training.settings.Training`).
        precision: Precision in which the network is trained.
        frames: How many frames of each split are used; None for all.
        calibrator_epochs: Epochs of LTS and IBTS.
        methods: segcal's names of the methods of the table that are fitted, beside TS and LTS.
        validation_frames: Frames of `val` that choose the epoch: "spread", or the "last" as in the released scripts.
        folds: Blocks of time in the protocol `beyond`.
        patch_size: Side of the Local patches.
        repetitions: Repetitions of the bootstrap over images.
    """

    epochs: int = 210
    full_epochs: int = 24
    crop: int = 224
    scales: tuple[float, float] = (0.75, 1.5)
    colour: float = 0.5
    batch_size: int = 3
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    average: float | None = 0.999
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    frames: int | None = None
    calibrator_epochs: int = 200
    methods: tuple[str, ...] = tuple(NAMES)
    validation_frames: ValidationFrames = "spread"
    folds: int = 5
    patch_size: int = 72
    repetitions: int = 1000

    def __post_init__(self) -> None:
        low, high = self.scales
        required = (
            (self.epochs >= 1, f"epochs must be 1 or more, got {self.epochs}"),
            (0 <= self.full_epochs <= self.epochs, f"full_epochs must be 0 to {self.epochs}, got {self.full_epochs}"),
            (self.crop >= 1, f"crop must be 1 or more, got {self.crop}"),
            (0 < low <= high, f"scales must be above 0 and ascend, got {low} and {high}"),
        )
        if broken := [text for holds, text in required if not holds]:
            raise InputError("; ".join(broken))


PRESETS = {
    "full": Recipe(),
    "small": Recipe(
        epochs=3,
        full_epochs=1,
        crop=32,
        batch_size=2,
        average=None,
        precision="float32",
        frames=6,
        calibrator_epochs=2,
        folds=2,
        patch_size=24,
        repetitions=20,
    ),
}
"""The real thing, and one that a CPU finishes in a minute, for the tests."""


@dataclass(frozen=True)
class Job:
    """One network, trained once."""

    network: Network
    loss: Loss
    seed: int

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"fc-densenet{self.network}-{self.loss}-{self.seed}"

    @classmethod
    def of(cls, name: str) -> Job:
        """The job that a folder is of."""
        found = re.fullmatch(r"fc-densenet(\w+)-([a-z-]+)-(\d+)", name)
        if found is None or found[1] not in get_args(Network) or found[2] not in LOSSES:
            raise InputError(
                f"the folder of a job must be called fc-densenet{{{','.join(get_args(Network))}}}-"
                f"{{{','.join(LOSSES)}}}-SEED, got '{name}'; move it elsewhere"
            )
        return cls(found[1], found[2], int(found[3]))  # type: ignore[arg-type]

    def folder(self, out: Path) -> Path:
        """Return the folder of the job."""
        return out / self.name

    def method(self, name: str) -> str:
        """Return the name of a calibrator on this network in the table: LTS, FL+LTS; UC, FL."""
        joint = LOSSES[self.loss]
        if not joint:
            return name
        return joint if name == "UC" else f"{joint}+{name}"

    def build(self) -> FCDenseNet:
        """The network, with random weights that the seed determines."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            if self.network == "tiny":
                return FCDenseNet(len(CLASSES), growth=4, layers=(2, 2), bottleneck=2, first=8)
            return fc_densenet(int(self.network), len(CLASSES))  # type: ignore[arg-type]

    def criterion(self) -> PixelLoss | None:
        """The loss of joint training; None for cross-entropy."""
        if self.loss == "ce":
            return None
        if self.loss in _GAMMAS:
            return FocalLoss(_GAMMAS[self.loss], ignore_index=VOID)
        if self.loss == "mmce-cited":
            return MMCELoss(1.0, squared=True, ignore_index=VOID)
        return MMCELoss(2.0, weighted=self.loss == "mmce-weighted", ignore_index=VOID)
