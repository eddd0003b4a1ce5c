"""Settings of a training run, checked when they are built, and the record of its epochs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from segcal.types import LARGEST_SEED, InputError, check_choice, check_whole

_LAST = 0.1  # share of the epochs that decides whether the loss is still falling
_FALLING = 1e-4  # smallest relative decrease over those epochs that counts as falling
OPTIMISERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass(frozen=True)
class Epoch:
    """Result of one epoch; `best` says whether its weights are the best so far."""

    number: int
    of: int
    loss: float
    validation: float | None
    best: bool
    seconds: float


@dataclass
class History:
    """Results of all epochs of a run."""

    epochs: list[Epoch] = field(default_factory=list)
    best_epoch: int = 0
    best_loss: float = float("inf")
    warnings: list[str] = field(default_factory=list)

    @property
    def losses(self) -> list[float]:
        """Validation loss of each epoch; the training loss if there is no validation."""
        return [epoch.loss if epoch.validation is None else epoch.validation for epoch in self.epochs]

    def epochs_without_decrease(self) -> int:
        """Return for how many epochs the loss has not fallen by 0.01 %; a slow decrease adds up."""
        least, last = math.inf, 0
        for number, loss in enumerate(self.losses, 1):
            wanted = _FALLING * abs(least) if math.isfinite(least) else 0.0
            if loss < least - wanted:
                least, last = loss, number
        return len(self.epochs) - last

    @property
    def is_falling(self) -> bool:
        """True if the loss has fallen by 0.01 % in the last tenth of the epochs, or at the only one."""
        return self.epochs_without_decrease() < max(1, round(_LAST * len(self.epochs)))


Watch = Callable[[Epoch], None]
Inspect = Callable[[int, nn.Module], None]
"""Receives the epoch's number and the objective that training would return if it ended now."""


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
