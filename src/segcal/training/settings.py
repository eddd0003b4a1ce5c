"""Settings of training: one frozen dataclass, checked when it is built."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from segcal.training.progress import Watch
from segcal.types import LARGEST_SEED, InputError, check_choice, check_whole

OPTIMISERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass(frozen=True)
class Training:
    """Settings of training.

    Args:
        epochs: Passes over the data.
        learning_rate: Initial learning rate of the optimiser.
        batch_size: Samples per step, summed over all processes.
        whole_batches: Drop the samples that do not fill the last batch of an epoch (different ones each epoch).
        milestones: Epochs after which the learning rate is multiplied by `gamma`.
        gamma: See `milestones`.
        cosine: Decay the learning rate to 0 along a cosine.
        warmup: Epochs over which the learning rate rises linearly at the start.
        optimiser: "adam" or "adamw" (decoupled weight decay).
        weight_decay: Weight decay of the optimiser.
        average: EMA decay of the weights, for example 0.99. The averaged weights, including batch-norm statistics, are
            the ones that are validated and kept. None: no averaging.
        patience: Stop after this many epochs in which the validation loss, or without validation the training loss, has
            not fallen by 0.01 % in all.
        patience_steps: Wait for at least as many steps, however few an epoch has.
        crop: Side of the random crops; None trains on whole samples.
        flips: Flip samples along random axes.
        spatial_dims: Number of spatial axes; needed for crops and flips.
        precision: "float32", or "bfloat16" for mixed precision.
        seed: Random seed.
        device: "auto", "cpu", "cuda", ...
        cache_bytes: Host memory in which cases from files may be kept; of all others, crops are read from the files.
        checkpoint: Folder of checkpoints from which an interrupted run resumes.
        checkpoint_every: Epochs between checkpoints.
        watch: Called after every epoch, in the first process only.
    """

    epochs: int = 200
    learning_rate: float = 1e-4
    batch_size: int = 4
    whole_batches: bool = False
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    cosine: bool = False
    warmup: int = 0
    optimiser: Literal["adam", "adamw"] = "adam"
    weight_decay: float = 0.0
    average: float | None = None
    patience: int | None = None
    patience_steps: int = 0
    crop: int | None = None
    flips: bool = False
    spatial_dims: int = 2
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0
    device: str = "auto"
    cache_bytes: int = 2 << 30
    checkpoint: str | Path | None = None
    checkpoint_every: int = 1
    watch: Watch | None = None

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or not self.learning_rate > 0:
            raise InputError(
                "epochs and batch_size must be at least 1 and learning_rate positive, "
                f"got {self.epochs}, {self.batch_size} and {self.learning_rate}"
            )
        for name, least, most in (("seed", 0, LARGEST_SEED), ("patience", 1, 1 << 30), ("crop", 1, 1 << 30)):
            if (value := getattr(self, name)) is not None:
                check_whole(name, value, least, most)
        check_choice("precision", self.precision, ("float32", "bfloat16"))
        check_choice("optimiser", self.optimiser, OPTIMISERS)
        if self.average is not None and not 0 < self.average < 1:
            raise InputError(f"average must be between 0 and 1, got {self.average}")

    def rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0."""
        steps = sum(epoch >= milestone for milestone in self.milestones)
        wave = 0.5 * (1 + np.cos(np.pi * epoch / self.epochs)) if self.cosine else 1.0
        rise = min(1.0, (epoch + 1) / (self.warmup + 1))
        return float(self.learning_rate * self.gamma**steps * wave * rise)

    def has_settled(self, epochs: int, samples: int) -> bool:
        """Return whether so many epochs without a decrease of the loss end the training on so many samples."""
        steps = epochs * math.ceil(samples / self.batch_size)
        return self.patience is not None and epochs >= self.patience and steps >= self.patience_steps

    def fingerprint(self) -> dict[str, Any]:
        """Return the settings that must be equal for a checkpoint to belong to the same run."""
        elsewhere = ("device", "cache_bytes", "checkpoint", "checkpoint_every", "watch")
        return {name: value for name, value in vars(self).items() if name not in elsewhere}


def override(settings: Training, **changes: Any) -> Training:
    """Return the settings with every change that is not None applied."""
    return replace(settings, **{name: value for name, value in changes.items() if value is not None})
