"""Figures in trackers: TensorBoard as it is, the others by the calls that they document."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import segcal
from segcal.integrations.tracking import figure_logger, log_figures
from segcal.types import InputError


class Recorder:
    """An object of some package, which records the calls of its methods."""

    def __init__(self, **attributes: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        vars(self).update(attributes)


def recorder(package: str, *methods: str, **attributes: Any) -> Recorder:
    def method(name: str) -> Any:
        return lambda self, *args, **options: self.calls.append((name, *args, options))

    members = {"__module__": f"{package}.inside", **{name: method(name) for name in methods}}
    made: Recorder = type("Recorder", (Recorder,), members)(**attributes)
    return made


def test_tensorboard(tmp_path: Path) -> None:
    reason = "tensorboard or matplotlib is not installed"
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason=reason)
    pytest.importorskip("matplotlib", reason=reason)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logits, labels = torch.randn(2, 3, 8, 8), torch.randint(0, 3, (2, 8, 8))
    with tensorboard.SummaryWriter(tmp_path) as writer:
        log_figures(writer, {"reliability": segcal.reliability_diagram(logits, labels)}, step=7)
    events = EventAccumulator(str(tmp_path)).Reload()
    (image,) = events.Images("reliability")
    assert (image.step, image.height > 100) == (7, True)


def test_mlflow_and_its_lightning_logger() -> None:
    module, client = recorder("mlflow", "log_figure"), recorder("mlflow", "log_figure")
    logger = recorder("lightning.pytorch.loggers", run_id="r1", experiment=client)
    log_figures(module, {"a": "figure"}, step=2)
    log_figures(logger, {"a": "figure"}, step=2)
    assert module.calls == [("log_figure", "figure", "a_000002.png", {})]
    assert client.calls == [("log_figure", "r1", "figure", "a_000002.png", {})]


def test_weights_and_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("wandb")
    package.Image = lambda figure: ("image", figure)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", package)
    run = recorder("wandb", "log")
    log_figures(run, {"a": "figure"}, step=3)
    log_figures(recorder("lightning.pytorch.loggers", experiment=run), {"b": "figure"})
    assert run.calls == [
        ("log", {"a": ("image", "figure")}, {"step": 3}),
        ("log", {"b": ("image", "figure")}, {"step": None}),
    ]


def test_others_are_refused() -> None:
    assert figure_logger(recorder("lightning.pytorch.loggers", experiment=object())) is None
    with pytest.raises(InputError, match="cannot be logged to object; give a SummaryWriter"):
        log_figures(object(), {})
