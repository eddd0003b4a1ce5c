"""`python -m tests.campaign mutate`: change the code of the core in one place and see whether its tests notice.

Each change is tried in a copy of the project, in a process forked from one that has imported PyTorch and pytest.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.campaign.operators import Slip, slips
from tests.campaign.targets import EQUIVALENT, ROOT, SLOW, TARGETS

SECONDS = 180.0
"""After which tests count as having noticed: a change that makes them hang is not missed."""


PRINTED = "printed.txt"
"""What the tests of the last change printed, in the copy."""


@dataclass
class Noticed:
    """What became of the changes: (module, "killed" | "survived" | "equivalent") and the survivors in words."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    survivors: list[str] = field(default_factory=list)


def mutate(seed: int, *, number: int | None, minutes: float | None) -> Noticed:
    """Try a random sample of all changes until there are enough or the time is over."""
    began, found = time.monotonic(), Noticed()
    _import_heavy()
    every = [(module, slip) for module in TARGETS for slip in slips(_source(module))]
    Random(seed).shuffle(every)
    print(f"{len(every):,} changes in {len(TARGETS)} modules", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="segcal-mutate-") as folder:
        copy = Path(folder)
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, copy / name)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy2(ROOT / name, copy / name)
        _check_baseline(copy, {module for module, _ in every[:number]}, minutes)
        for k, (module, slip) in enumerate(every[:number]):
            if minutes is not None and time.monotonic() - began > 60 * minutes:
                break
            kind = _try(copy, module, slip)
            found.counts[module, kind] += 1
            if kind == "survived":
                found.survivors.append(f"{module}, {slip}")
            print(f"{k + 1} {kind}: {module}, {slip}", file=sys.stderr, flush=True)
    return found


def _source(module: str) -> str:
    return (ROOT / "src" / "segcal" / f"{module}.py").read_text(encoding="utf-8")


def _import_heavy() -> None:
    """Import what takes long and is not changed; nothing of segcal."""
    import hypothesis.extra.numpy  # noqa: F401
    import pandas  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import torchmetrics  # noqa: F401


def _try(copy: Path, module: str, slip: Slip) -> str:
    if (module, slip.text, slip.after) in EQUIVALENT:
        return "equivalent"
    path = copy / "src" / "segcal" / f"{module}.py"
    path.write_text(slip.source, encoding="utf-8")
    try:
        return "survived" if _tests_pass(copy, TARGETS[module]) else "killed"
    finally:
        shutil.copy2(ROOT / "src" / "segcal" / f"{module}.py", path)


def _check_baseline(copy: Path, modules: set[str], minutes: float | None) -> None:
    """Raise unless the tests pass while nothing is changed; in a run of minutes, only those of one module."""
    files = sorted({file for module in modules for file in TARGETS[module]})
    if not _tests_pass(copy, tuple(files[:1] if minutes is not None else files), seconds=1800):
        words = (copy / PRINTED).read_text(errors="replace")
        raise SystemExit(f"the tests fail without any change, so they would notice anything:\n{words[-5000:]}")


def _tests_pass(copy: Path, files: tuple[str, ...], seconds: float = SECONDS) -> bool:
    """Run tests in a forked process; False if one fails, cannot be collected or takes too long."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            os.setsid()
            status = _run_tests(copy, files)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _run_tests(copy: Path, files: tuple[str, ...]) -> int:
    import pytest

    words = os.open(copy / PRINTED, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(words, 1)
    os.dup2(words, 2)
    os.chdir(copy)
    os.environ["PYTHONPATH"] = f"{copy}/src"
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(str(ROOT)) or "site-packages" in entry]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "segcal")]:
        del sys.modules[name]
    options = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "--rootdir", str(copy), "-k", SLOW]
    return int(pytest.main([*options, *files]))
