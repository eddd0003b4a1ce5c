"""Python in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("src", "tests", ".")),
    "OMP_NUM_THREADS": "1",
}
"""Environment in which segcal, the experiments and what the tests share can be imported."""

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
"""Arguments of Python that start two processes."""


def python(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with some arguments and further environment variables."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**ENVIRONMENT, **environment},
    )


def printed_by(*arguments: object, **environment: str) -> str:
    """Return what Python prints, which must end without an error."""
    done = python(*arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
