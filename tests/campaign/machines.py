"""`python -m tests.campaign odd-machines`: machines on which much is missing, in real processes of `python -m segcal`.

Each machine runs a few commands from start to end. They must do their work, or refuse in one sentence with status 2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import segcal
from tests.campaign import folders
from tests.campaign.trees import write_tree

NOBODY = 65534
SECONDS = 300


@dataclass(frozen=True)
class Machine:
    """What is odd about a machine.

    Args:
        name: In the table.
        variables: Environment variables; None removes one.
        user: Whose processes run; None for the present user.
        read_only: Whether package and home cannot be written.
        refuses: Whether refusing is right here, because the environment makes no sense.
    """

    name: str
    variables: Mapping[str, str | None] = field(default_factory=dict)
    user: int | None = None
    read_only: bool = False
    refuses: bool = False


MACHINES = (
    Machine("ordinary"),
    Machine("read-only package, no home, no cache", {"HOME": None, "XDG_CACHE_HOME": None}, NOBODY, read_only=True),
    Machine("another user", {"HOME": "/nonexistent"}, NOBODY),
    Machine("LC_ALL=C", {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    Machine("ascii output", {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}),
    Machine("latin-1 output", {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}),
    Machine("no TERM, 1 column", {"TERM": None, "COLUMNS": "1"}),
    Machine("RANK alone", {"RANK": "1"}, refuses=True),
    Machine("RANK and WORLD_SIZE are no numbers", {"RANK": "x", "WORLD_SIZE": "y"}, refuses=True),
    Machine("WORLD_SIZE=0", {"RANK": "0", "WORLD_SIZE": "0"}, refuses=True),
    Machine("RANK beyond WORLD_SIZE", {"RANK": "5", "WORLD_SIZE": "2", "LOCAL_RANK": "5"}, refuses=True),
    Machine("no temporary folder", {"TMPDIR": "/nonexistent"}),
)

COMMANDS = (
    ("--version",),
    ("fit", "data", "--method", "ts", "--out", "ts"),
    ("apply", "ts", "data", "--out", "probs"),
    ("evaluate", "data", "--calibrators", "ts", "--patches", "2", "--out", "results", "--page", "page.html"),
    ("table", "results", "--reference", "TS"),
)
WRITES = {"fit": "ts/segcal.json", "apply": "probs/segcal.json", "evaluate": "page.html"}


def odd_machines(seed: int) -> tuple[list[list[Any]], list[str]]:
    """Run the commands on every machine; return rows of (machine, commands, done, refused, defects) and complaints."""
    rows, complaints = [], []
    for machine in MACHINES:
        began = time.monotonic()
        reason, counts = None, {"done": 0, "refused": 0, "defect": 0}
        if machine.user is not None and (reason := _why_not(machine)):
            rows.append([f"{machine.name} (skipped: {reason})", 0, 0, 0, 0])
            continue
        with tempfile.TemporaryDirectory(prefix="segcal-machine-") as folder:
            for kind, complaint in _trials(machine, Path(folder), seed):
                counts[kind] += 1
                complaints += [complaint] if complaint else []
        rows.append([machine.name, sum(counts.values()), *counts.values()])
        print(f"{machine.name}: {counts} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return rows, complaints


def _why_not(machine: Machine) -> str | None:
    if os.getuid() != 0:
        return "needs root"
    return None if _interpreter() else "other users cannot start this Python"


def _interpreter() -> str | None:
    """Return an interpreter of this version that every user can start."""
    names = (
        sys.executable,
        f"/usr/bin/python3.{sys.version_info.minor}",
        f"/usr/local/bin/python3.{sys.version_info.minor}",
    )
    for name in names:
        path = Path(name).resolve()
        if path.exists() and all(parent.stat().st_mode & 0o001 for parent in path.parents):
            return name
    return None


def _trials(machine: Machine, root: Path, seed: int) -> list[tuple[str, str | None]]:
    import numpy as np

    package = Path(segcal.__file__).parent.parent
    if machine.user is not None:
        package = root / "package"
        shutil.copytree(Path(segcal.__file__).parent, package / "segcal", ignore=shutil.ignore_patterns("__pycache__"))
    work = root / "work"
    work.mkdir()
    write_tree(work, {f"data/{name}": c for name, c in folders.of_png(np.random.default_rng(seed)).items()})
    if machine.user is not None:
        root.chmod(0o755)
        for path in (work, *work.rglob("*")):
            os.chown(path, machine.user, machine.user)
        if not machine.read_only:
            for path in (package, *package.rglob("*")):
                os.chown(path, machine.user, machine.user)
    return [_trial(machine, command, work, package) for command in COMMANDS]


def _trial(machine: Machine, command: tuple[str, ...], work: Path, package: Path) -> tuple[str, str | None]:
    changes = {"PYTHONPATH": f"{package}:{sysconfig.get_path('purelib')}", **machine.variables}
    variables = {**os.environ, **changes}
    environment = {name: value for name, value in variables.items() if value is not None}
    python = (_interpreter() if machine.user is not None else sys.executable) or sys.executable
    ran = subprocess.run(
        [python, "-m", "segcal", *command],
        cwd=work,
        env=environment,
        capture_output=True,
        timeout=SECONDS,
        check=False,
        user=machine.user,
        group=machine.user,
        extra_groups=[] if machine.user is not None else None,
    )
    stdout, stderr = ran.stdout.decode("utf-8", "replace"), ran.stderr.decode("utf-8", "replace")
    words = f"{machine.name}: segcal {' '.join(command)}: status {ran.returncode}\n{stdout[-300:]}{stderr[-1500:]}"
    if "Traceback" in stderr or ran.returncode not in (0, 2):
        return "defect", words
    if ran.returncode == 2:
        sentences = [line for line in stderr.splitlines() if line.startswith("segcal: ")]
        return ("refused", None) if len(sentences) == 1 and machine.refuses else ("defect", words)
    written = WRITES.get(command[0])
    if not stdout.strip() or (written is not None and not (work / written).exists()):
        return "defect", f"nothing written or said; {words}"
    return "done", None
