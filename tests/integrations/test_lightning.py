"""A Lightning trainer that calibrates after each validation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from segcal import predict_cases
from segcal.calibrators import create
from segcal.evidence.suite import CalibrationSuite
from segcal.types import Case, InputError
from support.networks import CLASSES, Convolution, batch_of
from support.program import printed_by

lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed: make test-integrations")

from segcal.integrations.lightning import CalibrationCallback  # noqa: E402
from support.lightning_in_process import Module  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's remarks on workers and loggers


def loader(count: int = 6) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(*batch_of(count, (16, 18))), batch_size=2)


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Any]:
    def build(callback: Any, **options: Any) -> Any:
        return lightning.Trainer(
            callbacks=[callback],
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            **options,
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield build


@pytest.mark.parametrize("returns", [False, True])
def test_fits_and_logs_after_validation(trainer: Any, returns: bool) -> None:
    module, callback = Module(returns), CalibrationCallback(CLASSES)
    (found,) = trainer(callback).validate(module, loader(), verbose=False)
    images, labels = batch_of(6, (16, 18))
    with torch.no_grad():
        logits = module(images)
    cases = [Case(str(k), logits[k].numpy(), labels[k].numpy()) for k in range(6)]
    expected = create("ts", CLASSES).fit(cases)
    assert callback.calibrator is not None
    assert float(callback.calibrator.inverse_temperature) == pytest.approx(float(expected.inverse_temperature))
    before, after = CalibrationSuite(CLASSES), CalibrationSuite(CLASSES)
    before.update(logits, labels)
    for fitted, left_out in ((slice(0, 3), slice(3, 6)), (slice(3, 6), slice(0, 3))):
        after.update(create("ts", CLASSES).fit(cases[fitted])(logits[left_out]), labels[left_out])
    for name in ("ece", "nll"):
        assert found[f"val_{name}"] == pytest.approx(float(before.compute()["all"][name]), rel=1e-5)
        assert found[f"val_{name}_calibrated"] == pytest.approx(float(after.compute()["all"][name]), rel=1e-4)
    assert found["val_nll_calibrated"] < found["val_nll"]
    probs = callback.calibrated(module)(images)
    assert torch.equal(probs.argmax(1), logits.argmax(1))


@pytest.mark.parametrize("method", ["ts", "vector", "ibts"])
def test_the_calibrator_can_be_used_further(trainer: Any, method: str) -> None:
    """Lightning validates in inference mode, whose tensors cannot be changed or trained later."""
    module, callback = Module(True), CalibrationCallback(CLASSES, method)
    trainer(callback).validate(module, loader(), verbose=False)
    model = callback.calibrated(module)
    assert not any(value.is_inference() for value in model.state_dict().values())
    model.load_state_dict(model.state_dict())
    images, labels = batch_of(2, (16, 18))
    assert callback.calibrator is not None
    callback.calibrator.fit(list(predict_cases(module, [(images, labels)])))
    model(images)[:, 0].sum().backward()
    assert module.network.conv.weight.grad is not None


def test_works_during_training_and_forgets_the_sanity_check(trainer: Any) -> None:
    callback = CalibrationCallback(CLASSES)
    run = trainer(callback, max_epochs=2, num_sanity_val_steps=1)
    run.fit(Module(False), loader(4), loader(4))
    assert callback.calibrator.fit_report_.cases == 4
    assert "val_ece_calibrated" in run.callback_metrics
    assert callback._kept.cases == []


def test_the_checkpoint_holds_the_calibrator(trainer: Any, tmp_path: Path) -> None:
    module, callback = Module(True), CalibrationCallback(CLASSES, "vector")
    assert callback.state_dict() == {}
    run = trainer(callback, max_epochs=1)
    run.fit(module, loader(4), loader(4))
    run.save_checkpoint(tmp_path / "model.ckpt")
    later = CalibrationCallback(CLASSES, "vector")
    trainer(later, max_epochs=1).fit(Module(True), loader(4), loader(4), ckpt_path=tmp_path / "model.ckpt")
    assert later.calibrator is not None
    assert callback.calibrator is not None
    logits = torch.randn(1, CLASSES, 5, 5)
    assert torch.equal(later.calibrator(logits), callback.calibrator(logits))
    later.load_state_dict({})
    assert later.calibrator is None


def test_two_processes_fit_one_calibrator(tmp_path: Path) -> None:
    printed_by(Path(__file__).parents[1] / "support" / "lightning_in_process.py", tmp_path)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    assert found[0] == found[1]
    alone = CalibrationCallback(CLASSES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = lightning.Trainer(callbacks=[alone], accelerator="cpu", devices=1, logger=False)
        (logged,) = run.validate(Module(True), loader(6), verbose=False)
    assert alone.calibrator is not None
    assert found[0]["temperature"] == pytest.approx(alone.calibrator.fit_report_.details["temperature"])
    assert found[0]["val_ece"] == pytest.approx(logged["val_ece"])


@pytest.mark.parametrize("channels", [1, 2])
def test_sigmoid_channels(trainer: Any, channels: int) -> None:
    images, labels = batch_of(4, (16, 16))
    masks = torch.stack([labels == 1, labels >= 1], dim=1)[:, :channels].float()

    class Sigmoid(Module):
        def forward(self, image: Tensor) -> Tensor:
            return super().forward(image)[:, :channels]

    module, callback = Sigmoid(True), CalibrationCallback(channels, activation="sigmoid", in_memory=0)
    (found,) = trainer(callback).validate(module, DataLoader(TensorDataset(images, masks)), verbose=False)
    with torch.no_grad():
        logits, probs = module(images), callback.calibrated(module)(images)
    suite = CalibrationSuite(channels, activation="sigmoid")
    suite.update(logits, masks.long())
    assert found["val_ece"] == pytest.approx(float(suite.compute()["all"]["ece"]))
    assert torch.equal(probs > 0.5, logits > 0)


def test_a_suite_is_logged_under_flat_names(trainer: Any) -> None:
    class Logging(Module):
        def validation_step(self, batch: Any, index: int) -> None:
            suite.update(self(batch[0]), batch[1])

        def on_validation_epoch_end(self) -> None:
            self.log_dict(suite)

    suite = CalibrationSuite(CLASSES)
    (found,) = trainer(CalibrationCallback(CLASSES)).validate(Logging(False), loader(), verbose=False)
    assert found["all_ece"] == pytest.approx(found["val_ece"])
    assert found["all_nll"] == pytest.approx(found["val_nll"])


def test_other_batches(trainer: Any) -> None:
    images, labels = batch_of(2, (16, 16))
    batches = [{"image": images, "label": labels.unsqueeze(1)}]

    class Mapped(Module):
        def validation_step(self, batch: Any, index: int) -> None:
            return None

    (found,) = trainer(CalibrationCallback(CLASSES)).validate(
        Mapped(False), DataLoader(batches, batch_size=None), verbose=False
    )
    assert 0 < found["val_ece_calibrated"] < 1
    odd = DataLoader([{"scan": images, "truth": labels}], batch_size=None)
    callback = CalibrationCallback(CLASSES, unpack=lambda batch: (batch["scan"], batch["truth"]))
    (again,) = trainer(callback).validate(Mapped(False), odd, verbose=False)
    assert again == found
    other = CalibrationCallback(CLASSES)
    with pytest.raises(InputError, match=r"a batch must hold images under one of image, .* got the keys 'scan'"):
        trainer(other).validate(Mapped(False), odd, verbose=False)


def test_mistakes() -> None:
    with pytest.raises(InputError, match="method must be one of"):
        CalibrationCallback(CLASSES, "nothing")
    with pytest.raises(InputError, match="no calibrator before the first validation"):
        CalibrationCallback(CLASSES).calibrated(Convolution())


def test_figures_go_to_loggers_that_take_them(tmp_path: Path) -> None:
    reason = "tensorboard or matplotlib is not installed"
    pytest.importorskip("tensorboard", reason=reason)
    pytest.importorskip("matplotlib", reason=reason)
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoardLogger(tmp_path)
    options = {"accelerator": "cpu", "enable_progress_bar": False, "logger": [CSVLogger(tmp_path), board]}
    lightning.Trainer(callbacks=[CalibrationCallback(CLASSES)], **options).validate(Module(True), loader())
    events = EventAccumulator(board.log_dir).Reload()
    assert {"val_reliability", "val_reliability_calibrated"} <= set(events.Tags()["images"])
