"""Lightning: a callback that fits a calibrator after each validation, and logs calibration before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from segcal.calibrators import Calibrator, create, load
from segcal.cases import subset
from segcal.evidence.suite import CalibrationSuite
from segcal.functional.arrays import to_tensor
from segcal.functional.checks import activation_of
from segcal.integrations import needs_extra
from segcal.integrations.calibrate import CalibratedModel
from segcal.integrations.loaders import read_batch
from segcal.integrations.outputs import read_output
from segcal.integrations.predict import CaseMaker
from segcal.integrations.spill import IN_MEMORY, SpilledCases
from segcal.integrations.tracking import figure_logger, log_figures
from segcal.statistics.grouping import folds_of
from segcal.types import Activation, Case, IgnoreIndex, InputError

with needs_extra("lightning"):
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback

_LOGGED = ("ece", "nll")


class CalibrationCallback(Callback):
    """Fit a calibrator on the validation images after each validation.

    Logged are `val_ece` and `val_nll` of the network, and `val_ece_calibrated` and `val_nll_calibrated`: those of each
    half of the images with a calibrator that was fitted on the other half. Loggers of TensorBoard, Weights & Biases and
    MLflow receive the reliability diagrams of both as well, if matplotlib is installed. The calibrator of all images is
    in `calibrator` afterwards and in checkpoints, and `calibrated(module)` puts it behind the network. With several
    processes, each of them fits the same calibrator on the images of all.

    Batches are read as `segcal.calibrate` reads them (see `segcal.integrations.loaders`), and so is the output of the
    network (see `segcal.integrations.outputs`).

    Args:
        num_classes: Number of classes L, or of sigmoid channels C.
        method: Name of the method; one that is fitted in seconds if validation is frequent.
        activation: "sigmoid" for channels that may overlap, with labels `[B, C, *S]` of 0 and 1. By default a softmax,
            or a sigmoid if `num_classes` is 1.
        ignore_index: Label, or labels, left out.
        unpack: Function from a batch of another form to one that is read, such as a pair of images and labels.
        in_memory: Bytes of logits kept in memory; further ones go to temporary files.
        settings: Further settings of `segcal.create`.
    """

    def __init__(
        self,
        num_classes: int,
        method: str = "ts",
        *,
        activation: Activation | None = None,
        ignore_index: IgnoreIndex = None,
        unpack: Callable[[Any], Any] | None = None,
        in_memory: int = IN_MEMORY,
        **settings: Any,
    ) -> None:
        self.num_classes, self.method, self.ignore_index = num_classes, method, ignore_index
        self.activation = activation_of(activation, num_classes)
        self.unpack, self.settings = unpack, settings
        self.calibrator: Calibrator | None = None
        self._build(spatial_dims=2)  # raises now if a setting is wrong
        self.in_memory = in_memory
        self._forget()

    def calibrated(self, network: nn.Module) -> CalibratedModel:
        """Return the network with the calibrator of the last validation."""
        if self.calibrator is None:
            raise InputError("there is no calibrator before the first validation; validate or fit first")
        return CalibratedModel(network, self.calibrator)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the images of the last validation."""
        self._forget()

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
        read = read_batch(batch if self.unpack is None else self.unpack(batch), self.activation)
        given = outputs if isinstance(outputs, Mapping) and "logits" in outputs else None
        with torch.no_grad():
            logits = read_output(pl_module(read.image) if given is None else given)
        self._kept.extend(self._maker.cases(read, logits.float()))  # in float32, whatever the training's

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fit, and log."""
        if trainer.sanity_checking:
            return
        # Lightning validates in inference mode, whose tensors can neither be trained nor loaded into afterwards
        with torch.inference_mode(False):
            self._kept.share()
            measured = self._fit(self._kept.cases) if self._kept.cases else {}
        logged = {
            f"val_{name}{suffix}": float(suite.compute()["all"][name])
            for suffix, suite in measured.items()
            for name in _LOGGED
        }
        pl_module.log_dict(logged, sync_dist=trainer.world_size > 1)  # the same in every process
        trackers = [logger for logger in trainer.loggers if figure_logger(logger)] if trainer.is_global_zero else []
        if trackers and find_spec("matplotlib") is not None:
            figures = {f"val_reliability{suffix}": suite.plot() for suffix, suite in measured.items()}
            for tracker in trackers:
                log_figures(tracker, figures, trainer.global_step)
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """Return the calibrator for a checkpoint: the files that `save` writes, as tensors of bytes."""
        if self.calibrator is None:
            return {}
        with TemporaryDirectory() as folder:
            self.calibrator.save(Path(folder) / "calibrator")
            files = sorted((Path(folder) / "calibrator").iterdir())
            return {file.name: torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8) for file in files}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the calibrator of a checkpoint over."""
        with TemporaryDirectory() as folder:
            for name, content in state_dict.items():
                (Path(folder) / Path(name).name).write_bytes(content.cpu().numpy().tobytes())
            self.calibrator = load(folder) if state_dict else None

    def _fit(self, cases: Sequence[Case]) -> dict[str, CalibrationSuite]:
        """Fit the calibrator of all images; return the suites of before and after by the suffix of their names."""
        folds = folds_of([case.group for case in cases], 2)
        measured = {"": self._measured([(cases, None)])}
        if folds.max() > 0:
            halves = [subset(cases, np.flatnonzero(folds == k).tolist()) for k in (0, 1)]
            crossed = [(halves[k], self._fitted(halves[1 - k])) for k in (0, 1)]
            measured["_calibrated"] = self._measured(crossed)
        self.calibrator = self._fitted(cases)
        return measured

    def _build(self, spatial_dims: int) -> Calibrator:
        shape = {"spatial_dims": spatial_dims, "image_channels": 0, "activation": self.activation}
        return create(self.method, self.num_classes, ignore_index=self.ignore_index, **shape, **self.settings)

    def _fitted(self, cases: Sequence[Case]) -> Calibrator:
        return self._build(cases[0].logits.ndim - 1).fit(cases)

    def _measured(self, parts: Iterable[tuple[Iterable[Case], Calibrator | None]]) -> CalibrationSuite:
        """Return a suite that was shown cases, each with its calibrator."""
        suite = CalibrationSuite(self.num_classes, self.ignore_index, activation=self.activation, sync_on_compute=False)
        for cases, calibrator in parts:
            for case in cases:
                assert case.labels is not None  # batches without labels are refused
                logits, labels = to_tensor(case.logits)[None], to_tensor(case.labels)[None]
                with torch.no_grad():
                    suite.update(logits if calibrator is None else calibrator(logits), labels)
        return suite

    def _forget(self) -> None:
        self._maker, self._kept = CaseMaker(self.activation), SpilledCases(self.in_memory, images=False)
