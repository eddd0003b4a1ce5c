"""A trainer of nnU-Net for a CPU: its own schedule and augmentation in 400 steps instead of 250,000.

nnU-Net finds it by name in the folder that the variable `nnUNet_extTrainer` names.
"""

from __future__ import annotations

from typing import Any

import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer


class nnUNetTrainerShort(nnUNetTrainer):  # type: ignore[misc]  # noqa: N801  (the names of nnU-Net's trainers)
    """Eight epochs of 50 steps."""

    def __init__(
        self,
        plans: dict[str, Any],
        configuration: str,
        fold: int,
        dataset_json: dict[str, Any],
        device: torch.device = torch.device("cuda"),  # noqa: B008  (its base reads the names and defaults of these)
    ) -> None:
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.num_epochs, self.num_iterations_per_epoch, self.num_val_iterations_per_epoch = 8, 50, 5
