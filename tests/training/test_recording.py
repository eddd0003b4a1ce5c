"""Recorded steps without a GPU: what cannot be recorded runs as it is, and recordings are not disturbed."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from segcal.training.recording import Recorder


def no_graph() -> None:
    """Refuse what needs a GPU, even where there is one."""
    raise RuntimeError("no GPU")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The current stream of a GPU that is not there, last."""
    used = ["own"]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: used[-1])
    monkeypatch.setattr(torch.cuda, "CUDAGraph", no_graph)
    monkeypatch.setattr(torch.cuda, "set_stream", used.append)
    monkeypatch.setattr(Recorder, "_can_record", lambda self, _: not self.failed)
    monkeypatch.setattr(torch.cuda.graph, "default_capture_stream", "earlier")
    return used


def test_what_cannot_be_recorded_runs_as_it_is(monkeypatch: pytest.MonkeyPatch, streams: list[str]) -> None:
    tries = []

    def disturbed(module: nn.Module, samples: Any) -> None:
        tries.append(samples)
        module(*samples)
        streams.append("broken")  # PyTorch does not leave a stream whose recording could not be ended
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", disturbed)
    network, values = nn.BatchNorm1d(2), torch.randn(5, 2)
    before, recorder = network(values), Recorder(network)
    network.reset_running_stats()
    for _ in range(2):
        assert torch.equal(recorder(values), before)
        network.reset_running_stats()
    assert len(tries) == 1, "not tried again"
    assert recorder(torch.randn(3, 2)).shape == (3, 2)
    assert streams[-1] == "own"
    assert torch.cuda.graph.default_capture_stream is None


def test_a_failed_pass_leaves_no_trace(monkeypatch: pytest.MonkeyPatch, streams: list[str]) -> None:
    def disturbed(module: nn.Module, samples: Any) -> None:
        module(*samples)
        raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", disturbed)
    network = nn.BatchNorm1d(2)
    assert Recorder(network)._record((torch.randn(5, 2),)) is network
    assert network.running_mean is not None
    assert network.running_mean.tolist() == [0.0, 0.0], "changed by the pass that failed"


def test_nothing_is_freed_and_no_thread_refused_while_recording(
    monkeypatch: pytest.MonkeyPatch, streams: list[str]
) -> None:
    modes = []

    class Graph:
        def __init__(self, _: str, capture_error_mode: str = "global") -> None:
            modes.append((capture_error_mode, gc.isenabled()))

    def recorded(module: nn.Module, samples: tuple[Tensor, ...]) -> nn.Module:
        torch.cuda.graph("forward")
        return module

    monkeypatch.setattr(torch.cuda, "graph", Graph)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", recorded)
    recorder = Recorder(nn.Linear(2, 1))
    for rows in (5, 5, 3):
        recorder(torch.randn(rows, 2))
    assert modes == [("thread_local", False)] * 2
    assert gc.isenabled()
    assert torch.cuda.graph is Graph
    assert streams == ["own"]


def test_threads_record_one_after_the_other(monkeypatch: pytest.MonkeyPatch, streams: list[str]) -> None:
    """PyTorch records one graph at a time; and each thread restores what it found, garbage collection included."""
    graph, at_once, most = torch.cuda.graph, list[int](), list[int]()
    both = threading.Barrier(2, timeout=0.2)

    def recorded(module: nn.Module, samples: tuple[Tensor, ...]) -> nn.Module:
        at_once.append(1)
        with suppress(threading.BrokenBarrierError):
            both.wait()  # breaks, since the other thread never comes
        most.append(len(at_once))
        at_once.pop()
        return module

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", recorded)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda k: Recorder(nn.Linear(2, 1))(torch.randn(k + 2, 2)), range(4)))
    assert most == [1] * 4
    assert torch.cuda.graph is graph
    assert gc.isenabled()
