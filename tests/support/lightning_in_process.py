"""A module of Lightning; as a script, validate it with two processes, and save what each process has logged."""

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
    """A convolution, which returns its logits from the validation step or does not."""

    def __init__(self, returns: bool = False) -> None:
        super().__init__()
        self.network, self.returns = Convolution(), returns

    def forward(self, image: Tensor) -> Tensor:
        return self.network(image)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> Any:
        logits = self(batch[0])
        return {"logits": logits} if self.returns else None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


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
