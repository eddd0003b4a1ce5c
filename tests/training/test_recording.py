"""Recorded steps without a GPU: what cannot be recorded runs as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from segcal.training.recording import Recorder


def test_what_cannot_be_recorded_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def disturbed(module: nn.Module, samples: Any) -> None:
        module(*samples)
        raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", disturbed)
    network = nn.BatchNorm1d(2)
    assert Recorder(network)._record((torch.randn(5, 2),)) is network
    assert network.running_mean is not None
    assert network.running_mean.tolist() == [0.0, 0.0], "changed by the pass that failed"
