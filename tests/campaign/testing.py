"""Copies of the project in which its tests run, each time in a process forked from one that has imported PyTorch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.campaign.targets import ROOT, SLOW

PRINTED, FAILED = "printed.txt", "failed.json"
"""What the last tests printed, and the names of those that failed, in the copy."""


@dataclass(frozen=True)
class Outcome:
    """How tests ended.

    Args:
        state: "passed", "failed" or "hung".
        failed: Names of tests and files that failed.
        seconds: How long they took.
        printed: The end of what they printed.
    """

    state: str
    failed: tuple[str, ...]
    seconds: float
    printed: str


def import_heavy(threads: int) -> None:
    """Import what takes long and is not changed, nothing of segcal; let each process compute on some threads."""
    import hypothesis.extra.numpy  # noqa: F401
    import pandas  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch
    import torchmetrics  # noqa: F401

    torch.set_num_threads(threads)


def copy_project(to: Path) -> None:
    """Copy what the tests need."""
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, to / name)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy2(ROOT / name, to / name)


def outcome_of(copy: Path, files: Sequence[str], left_out: Sequence[str], *, first: bool, seconds: float) -> Outcome:
    """Run the tests of some files in a copy; with `first`, only up to the first that fails.

    A process that takes longer than `seconds` is killed with everything that it started.
    """
    began = time.monotonic()
    (copy / FAILED).unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _become_tests(copy, files, left_out, first)
    status = _waited(pid, began + seconds)
    took, printed = time.monotonic() - began, (copy / PRINTED).read_text(errors="replace")[-5000:]
    failed = tuple(json.loads((copy / FAILED).read_text())) if (copy / FAILED).exists() else ()
    state = "hung" if status is None else "passed" if status == 0 else "failed"
    return Outcome(state, failed, took, printed)


def _waited(pid: int, end: float) -> int | None:
    """Return the exit status of a process, or None if it had to be killed."""
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _become_tests(copy: Path, files: Sequence[str], left_out: Sequence[str], first: bool) -> None:
    status = 70
    try:
        os.setsid()
        words = os.open(copy / PRINTED, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(words, 1)
        os.dup2(words, 2)
        status = _run_tests(copy, files, left_out, first)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


class _Failures:
    """A plugin of pytest that collects the names of tests that fail and of files that cannot be collected."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and report.nodeid not in self.names:
            self.names.append(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.names.append(report.nodeid)


def _run_tests(copy: Path, files: Sequence[str], left_out: Sequence[str], first: bool) -> int:
    import pytest

    _enter(copy)
    options = ["-q", "--assert=plain", "-p", "no:cacheprovider", "--rootdir", str(copy), "-k", SLOW]
    options += ["-x"] if first else []
    options += [f"--deselect={name}" for name in left_out]
    failures = _Failures()
    status = int(pytest.main([*options, *files], plugins=[failures]))
    (copy / FAILED).write_text(json.dumps(failures.names))
    loaded = sys.modules.get("segcal")
    if loaded is not None and not str(loaded.__file__).startswith(str(copy)):
        raise RuntimeError(f"the tests ran with {loaded.__file__} instead of the copy")
    return status


def _enter(copy: Path) -> None:
    """Let this process, and those that it starts, import segcal and the tests from the copy."""
    os.chdir(copy)
    own = {str(ROOT), str(ROOT / "src"), str(ROOT / "tests")}
    further = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry not in own]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(copy / "src"), *further])
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # two changes within a second could be taken for each other
    sys.dont_write_bytecode = True
    sys.path[:] = [entry for entry in sys.path if entry not in own]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "segcal", "support")]:
        del sys.modules[name]
