"""Lightning: a callback that fits a calibrator after each validation, and logs calibration before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from segcal.calibrators import Calibrator, create
from segcal.functional.probability import two_class_logits
from segcal.integrations.calibrated_model import CalibratedModel
from segcal.integrations.extras import needs_extra
from segcal.metrics import CalibrationSuite
from segcal.types import Case, IgnoreIndex, Image, InputError, Labels

with needs_extra("lightning"):
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback

_LOGGED = ("ece", "nll")


def first_two(batch: Any) -> tuple[Image, Labels]:
    """Return image and labels of a batch `(image, labels, ...)`."""
    if isinstance(batch, Mapping) or not isinstance(batch, Sequence) or len(batch) < 2:
        raise InputError(f"a batch must be (image, labels, ...), got {type(batch).__name__}; give `unpack`")
    return batch[0], batch[1]


class CalibrationCallback(Callback):
    """Fit a calibrator on the validation images after each validation.

    Logged are `val_ece` and `val_nll` of the network, and `val_ece_calibrated` and `val_nll_calibrated`: those of each
    half of the images with a calibrator that was fitted on the other half, so that they are not too good. The
    calibrator of all images is in `calibrator` afterwards, and `calibrated(module)` puts it behind the network. The
    logits wait in a temporary folder, so memory is bounded.

    Args:
        num_classes: Number of classes L; 1 for a network with one sigmoid channel.
        method: Name of the method; one that is fitted in seconds if validation is frequent.
        ignore_index: Label, or labels, left out.
        unpack: Function from a batch to images and labels; the first two entries of a tuple by default.
        settings: Further settings of `segcal.create`.
    """

    def __init__(
        self,
        num_classes: int,
        method: str = "ts",
        *,
        ignore_index: IgnoreIndex = None,
        unpack: Callable[[Any], tuple[Image, Labels]] = first_two,
        **settings: Any,
    ) -> None:
        self.num_classes, self.method, self.ignore_index = num_classes, method, ignore_index
        self.unpack, self.settings = unpack, settings
        self.calibrator: Calibrator | None = None
        self._build(spatial_dims=2)  # raises now if a setting is wrong
        self._folder: TemporaryDirectory[str] | None = None
        self._cases: list[Case] = []

    def calibrated(self, network: nn.Module) -> CalibratedModel:
        """Return the network with the calibrator of the last validation."""
        if self.calibrator is None:
            raise InputError("there is no calibrator before the first validation; validate or fit first")
        return CalibratedModel(network, self.calibrator)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the images of the last validation."""
        if trainer.world_size > 1:
            raise InputError("CalibrationCallback runs in one process; validate with devices=1, or use 'segcal fit'")
        self._forget()
        self._folder = TemporaryDirectory(prefix="segcal-")

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the logits of a batch: those of the step, if it returns them as "logits", else computed again."""
        if trainer.sanity_checking:
            return
        image, labels = self.unpack(batch)
        given = outputs.get("logits") if isinstance(outputs, Mapping) else None
        with torch.no_grad():
            logits = self._logits(pl_module, image) if given is None else given.detach()
        for k in range(len(image)):
            self._keep(logits[k], labels[k])

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fit, and log."""
        if trainer.sanity_checking or not self._cases:
            return
        dims = self._cases[0].logits.ndim - 1
        half = len(self._cases) // 2
        before, after = self._suite(), self._suite()
        self._measure(self._cases, None, before)
        if half:
            for fitted, left_out in (
                (self._cases[:half], self._cases[half:]),
                (self._cases[half:], self._cases[:half]),
            ):
                self._measure(left_out, self._build(dims).fit(fitted), after)
        self.calibrator = self._build(dims).fit(self._cases)
        found = {f"val_{name}": before.compute()["all"][name] for name in _LOGGED}
        if half:
            found |= {f"val_{name}_calibrated": after.compute()["all"][name] for name in _LOGGED}
        pl_module.log_dict({name: float(value) for name, value in found.items()})
        self._forget()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave no temporary folder behind."""
        self._forget()

    def _build(self, spatial_dims: int) -> Calibrator:
        shape = {"spatial_dims": spatial_dims, "image_channels": 0}
        return create(self.method, self.num_classes, ignore_index=self.ignore_index, **shape, **self.settings)

    def _logits(self, network: nn.Module, image: Tensor) -> Tensor:
        return CalibratedModel(network, self._build(image.ndim - 2)).logits(image)

    def _keep(self, logits: Tensor, labels: Tensor) -> None:
        assert self._folder is not None
        name = f"{len(self._cases):06d}"
        path = Path(self._folder.name) / f"{name}.npy"
        np.save(path, logits.float().cpu().numpy(), allow_pickle=False)
        shown = labels[0] if labels.ndim == logits.ndim else labels  # [1, *S], as MONAI has them
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        self._cases.append(Case(name, mapped, shown.cpu().numpy()))

    def _suite(self) -> CalibrationSuite:
        return CalibrationSuite(max(self.num_classes, 2), self.ignore_index, sync_on_compute=False)

    def _measure(self, cases: Sequence[Case], calibrator: Calibrator | None, suite: CalibrationSuite) -> None:
        for case in cases:
            logits = torch.from_numpy(np.array(case.logits))[None]
            with torch.no_grad():
                shown = logits if calibrator is None else calibrator(logits)
            both = two_class_logits(shown) if self.num_classes == 1 else shown
            suite.update(both, torch.as_tensor(case.labels).long()[None])

    def _forget(self) -> None:
        self._cases = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
