"""Tasks on PyTorch's threads, and on a pool where these cannot be reached."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from segcal.kernels.cpu import team

Threads = Callable[[int], None]


@pytest.fixture(params=["PyTorch's threads", "pool"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pool":
        monkeypatch.setattr(team, "_parallel_region", lambda: None)
    elif team._parallel_region() is None:
        pytest.skip("the OpenMP runtime of this PyTorch cannot be reached")
    return str(request.param)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("many", [0, 1, 2, 17])
def test_results_come_back_in_order(engine: str, set_threads: Threads, threads: int, many: int) -> None:
    set_threads(threads)
    assert team.run_all([lambda k=k: k * k for k in range(many)]) == [k * k for k in range(many)]


def test_each_task_runs_once(engine: str, set_threads: Threads) -> None:
    set_threads(3)
    seen: list[int] = []
    for _ in range(200):
        team.run_all([partial(seen.append, k) for k in range(7)])
    assert sorted(seen) == sorted(list(range(7)) * 200)


def test_tasks_run_at_the_same_time(engine: str, set_threads: Threads) -> None:
    set_threads(2)
    both = threading.Barrier(2, timeout=60)  # passed only if two tasks wait at once
    assert sorted(team.run_all([both.wait, both.wait])) == [0, 1]


def test_an_error_is_raised_after_the_other_tasks(engine: str, set_threads: Threads) -> None:
    set_threads(2)
    done: list[int] = []
    with pytest.raises(ZeroDivisionError):
        team.run_all([lambda: 1 // 0, lambda: done.append(1)])
    assert team.run_all([lambda: 1, lambda: 2]) == [1, 2], "and the next tasks run as before"
    assert done == [1]


def test_an_interrupt_is_raised(engine: str, set_threads: Threads) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt  # as Python's handler does, in whatever the main thread is doing

    set_threads(2)
    with pytest.raises(KeyboardInterrupt):
        team.run_all([interrupted, lambda: 1])


def test_tasks_run_on_threads_of_pytorch(set_threads: Threads) -> None:
    if team._parallel_region() is None:
        pytest.skip("the OpenMP runtime of this PyTorch cannot be reached")
    set_threads(2)
    torch.rand(1 << 20).exp()
    before = len(list(Path("/proc/self/task").iterdir()))
    both = threading.Barrier(2, timeout=60)
    team.run_all([both.wait, both.wait])
    assert len(list(Path("/proc/self/task").iterdir())) <= before, "no thread was started for the tasks"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own(set_threads: Threads) -> None:
    set_threads(2)
    assert team.run_all([lambda: 1, lambda: 2]) == [1, 2]
    child = os.fork()
    if not child:
        signal.alarm(60)
        os._exit(0 if team.run_all([lambda: 3, lambda: 4]) == [3, 4] else 1)
    assert os.waitpid(child, 0)[1] == 0
