"""Run as a script by the tests: validate with two processes of Lightning, and save what each process has logged."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from support.networks import CLASSES, Convolution, batch_of
from support.torchvision_operators import define_missing_operators

define_missing_operators()

import lightning.pytorch as lightning  # noqa: E402

from segcal.integrations.lightning import CalibrationCallback  # noqa: E402


class Module(lightning.LightningModule):
    """A convolution that is validated."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Convolution()

    def forward(self, image: Tensor) -> Any:
        return self.network(image)

    def validation_step(self, batch: Any, index: int) -> None:
        return None


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    callback = CalibrationCallback(CLASSES)
    trainer = lightning.Trainer(
        callbacks=[callback], accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_progress_bar=False
    )
    loader = DataLoader(TensorDataset(*batch_of(6, (16, 18))), batch_size=2)
    (logged,) = trainer.validate(Module(), loader, verbose=False)
    found = {**logged, "temperature": callback.calibrator.fit_report_.details["temperature"]}
    torch.save(found, Path(sys.argv[1]) / f"{trainer.global_rank}.pt")
