"""segcal as a program of its own: its environment, exit status, signals, and two processes of torchrun."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import segcal
from segcal import cli
from segcal.data.folders.writer import write_folder
from support import run_commands
from support.commands import everything, refuse, run, succeed
from support.program import TORCHRUN, printed_by, python
from support.scenes import simulated

STRICT = {"PYTHONWARNINGS": "error", "COLUMNS": "200"}
QUICK = ("--epochs", 2, "--set", "learning_rate=1e-3", "batch_size=2", "--seed", 1, "--device", "cpu")


def test_waiting_threads_sleep_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = dict[str, str]()
    monkeypatch.setattr("segcal.cli.app.app", lambda **_: seen.update(os.environ))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # which pytest has set
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.delenv("KMP_BLOCKTIME", raising=False)
    cli.main()
    monkeypatch.delenv("KMP_BLOCKTIME")
    assert (seen["OMP_WAIT_POLICY"], seen["KMP_BLOCKTIME"]) == ("ACTIVE", "0")


def test_a_nul_character_in_an_argument_is_refused() -> None:
    assert refuse("apply", "ts", "data", "--out", "a\0b").startswith("segcal: arguments must not contain a NUL")


def test_a_reader_that_has_had_enough_is_no_mistake(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `segcal fit DATA | head -1`, where printing fails."""

    def closed(*_: Any, **__: Any) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("segcal.cli.console.Answer.print", closed)
    result = run("fit", data, "--method", "ts", "--out", data.parent / "ts")
    assert result.exit_code == 1
    assert result.stderr == ""
    assert segcal.load(data.parent / "ts").fitted


@pytest.mark.parametrize(("flags", "summary"), [(("-O",), "Divide the logits"), (("-OO",), "No description")])
def test_program_without_assertions_and_docstrings(flags: tuple[str, ...], summary: str) -> None:
    for arguments in (["--json"], ["lts"]):
        assert summary in printed_by(*flags, "-m", "segcal", "methods", *arguments)


def test_program_without_a_compiler(data: Path) -> None:
    """As for measuring coverage: the plain forms run, instead of kernels as loops of Python."""
    out = [data.parent / name for name in ("compiled", "plain")]
    for place, disabled in zip(out, ("0", "1"), strict=True):
        printed_by("-m", "segcal", "fit", data, "--method", "ts", "--out", place, NUMBA_DISABLE_JIT=disabled)
    compiled, plain = (segcal.load(place).inverse_temperature for place in out)
    torch.testing.assert_close(plain, compiled)


def test_program_runs(data: Path, tmp_path: Path) -> None:
    done = python("-m", "segcal", "fit", data, "--method", "ts", "--out", tmp_path / "ts", "--json", **STRICT)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["cases"] == 1
    assert segcal.load(tmp_path / "ts").fitted


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize("command", ["--help", "evaluate"])
def test_program_with_a_full_disk_below_its_output(command: str, data: Path) -> None:
    """Standard output is refused in one sentence; standard error, where warnings go, ends nothing."""
    code = "import os, sys\nos.dup2(os.open('/dev/full', os.O_WRONLY), {})\nfrom segcal.cli import main\nmain()"
    args = (command, *([data, "--patches", 2] if command == "evaluate" else []))
    done = python("-c", code.format(1), *args)
    assert done.returncode == 2
    assert re.match(r"segcal: No space left on device; ", done.stderr.splitlines()[-1])
    done = python("-c", code.format(2), *args)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_program_refuses(data: Path, tmp_path: Path) -> None:
    logits = np.load(data / "logits" / "scene-001.npy")
    logits[1, 2, 3] = np.nan
    np.save(data / "logits" / "scene-001.npy", logits)
    before = everything(tmp_path)
    asked = ("--method", "ts", "--split", "test", "--out", tmp_path / "ts")
    done = python("-m", "segcal", "fit", data, *asked, **STRICT)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(r"segcal: logits must be finite,.* got nan at .* of case 'scene-001'; .*", line)
    assert everything(tmp_path) == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
def test_program_cleans_up_when_it_is_terminated(data: Path, calibrator: Path) -> None:
    """SIGTERM while the first case is written: no folder, no temporary one, no lock."""
    code = (
        "import os, signal, sys\nfrom segcal.cli import main\nfrom segcal.calibrators import temperature\n"
        "temperature.scaled_probabilities = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\nmain()"
    )
    before = everything(data.parent)
    done = python("-c", code, "apply", calibrator, data, "--out", data.parent / "probs")
    assert done.returncode == 128 + 15, done.stderr
    assert everything(data.parent) == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
@pytest.mark.parametrize(("number", "status"), [(2, 130), (15, 143)])
def test_a_signal_while_numpy_is_imported_is_not_lost(number: int, status: int, data: Path) -> None:
    """PyTorch would forget it, if it were the first to import NumPy."""
    code = (
        "import os, sys\nclass Finder:\n once = ['numpy._core']\n def find_spec(self, name, *_):\n"
        f"  if name in self.once: os.kill(os.getpid(), {number}, *self.once.clear() or ())\n"
        "sys.meta_path.insert(0, Finder())\nfrom segcal.cli import main\nmain()"
    )
    done = python("-c", code, "fit", data, "--method", "ts", "--out", data.parent / "ts")
    assert done.returncode == status, done.stderr
    assert not (data.parent / "ts").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
@pytest.mark.parametrize("number", [2, 15])
def test_a_signal_in_a_finalizer_is_not_lost(number: int, data: Path, calibrator: Path) -> None:
    """Python prints and forgets an exception that leaves `__del__`; compilers and readers of files have finalizers."""
    code = (
        "import os, time\nfrom segcal import apply\nfrom segcal.cli import main\n"
        "class Held:\n    def __del__(self):\n"
        f"        os.kill(os.getpid(), {number})\n        time.sleep(0.01)\n"
        "def work(*_, **__):\n    Held()\n    time.sleep(30)\n"
        "apply.apply_to_folder = work\nmain()"
    )
    started = time.monotonic()
    done = python("-c", code, "apply", calibrator, data, "--out", data.parent / "probs")
    assert done.returncode == {2: 130, 15: 128 + 15}[number], done.stderr
    assert time.monotonic() - started < 25


METHODS: dict[str, tuple[object, ...]] = {
    "lts": QUICK,
    "cts": (),
    "auto": ("--set", "candidates=ts,cts,lts", "time_limit=none", *QUICK),
}


def test_two_processes_fit_what_one_does(tmp_path: Path) -> None:
    cases = simulated(6, num_classes=3, size=(12, 14), contrast=2.0)
    write_folder(tmp_path / "data", {"fit": cases[:5], "validation": cases[5:]})
    options = {name: ("fit", tmp_path / "data", "--method", name, *settings) for name, settings in METHODS.items()}
    done = python(*TORCHRUN, "-m", "segcal", *options["lts"], "--out", tmp_path / "lts-2", COLUMNS="200")
    _assert_done(done, "lts")
    others = [[*map(str, options[name]), "--out", str(tmp_path / f"{name}-2")] for name in ("cts", "auto")]
    done = python(*TORCHRUN, run_commands.__file__, json.dumps(others), COLUMNS="200")  # to start processes once
    _assert_done(done, "cts", "auto")
    for name, asked in options.items():
        succeed(*asked, "--out", tmp_path / f"{name}-1")
        two, one = (segcal.load(tmp_path / f"{name}-{count}") for count in (2, 1))
        for key, value in one.state_dict().items():
            assert torch.allclose(two.state_dict()[key].float(), value.float(), rtol=0, atol=1e-5), (name, key)
        assert two.fit_report_.nll_after == pytest.approx(one.fit_report_.nll_after, abs=1e-6), name
        assert set(two.fit_report_.names) == set(one.fit_report_.names), name
    assert two.fit_report_.details["scores"]["lts"]["seconds"] > 0, "it was tried by auto, the last of them"


def _assert_done(done: subprocess.CompletedProcess[str], *methods: str) -> None:
    """Without an error, and told once, by the first of the processes."""
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert [done.stdout.count(f"{method}: NLL") for method in methods] == [1] * len(methods)
    assert done.stdout.count("saved in") == len(methods)
