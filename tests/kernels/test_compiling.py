"""Compiled code on disk, never a reason to fail, and tasks side by side on a pool of threads."""

from __future__ import annotations

import ast
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
import torch

from segcal.kernels.cpu import compiling
from segcal.kernels.cpu.compiling import as_numpy, compiled, run_all
from support.program import python

SOURCE = "def double(x):\n    return 2 * x\n"
SCRIPT = """
from segcal.kernels.cpu.compiling import compiled
import twice
double = compiled(twice.double)
assert double(21) == 42
print(double.stats.cache_path, sum(double.stats.cache_hits.values()))
"""


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    compiling._warn_once.cache_clear()
    yield
    compiling._warn_once.cache_clear()


def run(folder: Path, **environment: str) -> CompletedProcess[str]:
    """Compile and call a function of a module in `folder`, in another process."""
    (folder / "twice.py").write_text(SOURCE)
    script = f"import sys; sys.path[0] = {str(folder)!r}{SCRIPT}"
    done = python("-c", script, PYTHONDONTWRITEBYTECODE="1", **environment)
    assert done.returncode == 0, done.stderr
    return done


def test_code_is_kept(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    found = [run(tmp_path, NUMBA_CACHE_DIR=store).stdout.split()[1] for _ in range(2)]
    assert found == ["0", "1"], "compiled, then read"


def test_no_writable_folder_costs_time_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    locators = "UserProvidedCacheLocator"  # as if neither the package nor the home could be written
    done = run(tmp_path, NUMBA_CACHE_DIR=str(blocked), NUMBA_CACHE_LOCATOR_CLASSES=locators)
    assert done.stdout.split() == ["None", "0"]
    assert done.stderr.count("compiled kernels are not kept on disk") == 1
    assert "NUMBA_CACHE_DIR" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="needs owners of folders")
def test_folders_of_others_are_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o755)
    assert compiling._is_trusted(folder)
    folder.chmod(0o777)
    assert not compiling._is_trusted(folder), "everybody may write to it"
    folder.chmod(0o755)
    if folder.stat().st_uid == 0:  # root may give it away
        os.chown(folder, 54321, -1)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert not compiling._is_trusted(folder), "it belongs to another user"


def test_without_a_trusted_folder_functions_are_compiled_in_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiling, "_is_trusted", lambda folder: False)
    with caplog.at_level(logging.WARNING, logger="segcal"):
        functions = [compiled(lambda x, k=k: x + k) for k in range(2)]
        assert [function(1) for function in functions] == [1, 2]
    assert [function.stats.cache_path for function in functions] == [None, None]
    assert len(caplog.records) == 1, "reported once"


def test_kernels_assign_no_array_to_a_slice() -> None:
    """numba then compiles 30 functions for the text of an error, which takes two seconds at the first use."""
    for file in Path(compiling.__file__).parent.glob("*.py"):
        for function in compiled_functions(ast.parse(file.read_text("utf-8"))):
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
                    parts = [*ast.walk(node.targets[0]), *ast.walk(node.value.slice)]
                    slices = [part for part in parts if isinstance(part, ast.Slice)]
                    assert len(slices) < 2, f"{file.name}:{node.lineno}"


def compiled_functions(module: ast.Module) -> list[ast.FunctionDef]:
    names = {"compiled", "summing", "inlined"}
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    return [each for each in functions if names & {getattr(mark, "id", "") for mark in each.decorator_list}]


# ---------------------------------------------------------------------------------------------------------------------
# tasks on a pool of threads, and signals while they run


Threads = Callable[[int], None]

FIT = """
import signal
import sys
import torch
import segcal

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have background jobs ignore it
torch.set_num_threads(2)
logits = torch.randn(5, 512, 512, generator=torch.Generator().manual_seed(0))
labels = (logits + torch.randn(5, 512, 512)).argmax(dim=0)
cases = [segcal.Case(f"{k}", logits, labels) for k in range(2)]
print("ready", flush=True)
while True:
    if sys.argv[1] == "fit":
        segcal.create("ts", num_classes=5).fit(cases)
    else:
        loader = [(logits[None], labels[None])]
        segcal.calibrate(torch.nn.Identity(), loader, method="ts")(logits[None])
"""


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("many", [0, 1, 2, 17])
def test_results_are_in_order(set_threads: Threads, threads: int, many: int) -> None:
    set_threads(threads)
    assert run_all([lambda k=k: k * k for k in range(many)]) == [k * k for k in range(many)]


def test_each_task_runs_once(set_threads: Threads) -> None:
    set_threads(3)
    seen: list[int] = []
    for _ in range(200):
        run_all([partial(seen.append, k) for k in range(7)])
    assert sorted(seen) == sorted(list(range(7)) * 200)


def test_tasks_run_at_the_same_time(set_threads: Threads) -> None:
    set_threads(2)
    both = threading.Barrier(2, timeout=60)  # passed only if two tasks wait at once
    assert sorted(run_all([both.wait, both.wait])) == [0, 1]


def test_tasks_may_run_tasks(set_threads: Threads) -> None:
    set_threads(2)
    inner = partial(run_all, [lambda: 1, lambda: 2])
    assert run_all([inner] * 4) == [[1, 2]] * 4


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("where", [0, 1])
def test_an_error_of_any_task_is_raised(set_threads: Threads, error: type[BaseException], where: int) -> None:
    started = threading.Barrier(2, timeout=60)

    def fail() -> None:
        started.wait()
        raise error

    set_threads(2)
    tasks: list[Callable[[], object]] = [started.wait, started.wait]
    tasks[where] = fail
    with pytest.raises(error):
        run_all(tasks)
    assert run_all([lambda: 1, lambda: 2]) == [1, 2], "the next tasks run as before"


@pytest.mark.parametrize("in_main", [True, False])
def test_no_task_begins_after_an_error(set_threads: Threads, in_main: bool) -> None:
    started, done = threading.Barrier(2, timeout=60), list[int]()

    def fail_in_one_thread() -> None:
        started.wait()
        if (threading.current_thread() is threading.main_thread()) == in_main:
            raise ZeroDivisionError
        time.sleep(0.2)

    set_threads(2)
    with pytest.raises(ZeroDivisionError):
        run_all([fail_in_one_thread, fail_in_one_thread, *[partial(done.append, k) for k in range(50)]])
    assert len(done) < 50


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own(set_threads: Threads) -> None:
    set_threads(2)
    assert run_all([lambda: 1, lambda: 2]) == [1, 2]
    child = os.fork()
    if not child:
        signal.alarm(60)
        os._exit(0 if run_all([lambda: 3, lambda: 4]) == [3, 4] else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize(("what", "sent"), [("fit", signal.SIGINT), ("calibrate", signal.SIGTERM)])
def test_a_signal_at_any_moment_ends_the_program(what: str, sent: signal.Signals) -> None:
    delays = np.random.default_rng().uniform(0.0, 0.3, size=2)
    programs = [
        subprocess.Popen([sys.executable, "-c", FIT, what], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in delays
    ]
    for program, delay in zip(programs, delays, strict=True):
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        time.sleep(delay)
        program.send_signal(sent)
    try:
        for program, delay in zip(programs, delays, strict=True):
            _, errors = program.communicate(timeout=20)
            assert program.returncode != 0, f"ignored after {delay:.3f} s"
            assert "Exception ignored" not in errors
    finally:
        for program in programs:
            program.kill()


def test_tensors_that_are_negated_when_they_are_read() -> None:
    values = torch._neg_view(torch.arange(3.0))
    assert values.is_neg()
    np.testing.assert_array_equal(as_numpy(values), [0, -1, -2])
