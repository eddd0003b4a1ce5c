"""Commands in processes of their own, forked from one that has imported and warmed up everything.

A forked process differs from `python -m segcal` only in that it starts in milliseconds: it runs `segcal.cli.main` with
its signal handlers, writes for real, and can be killed, limited or confined without harm to the campaign.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PYTHON = "python"
"""In place of a command: what follows is a program that uses segcal as a library."""


@dataclass
class Child:
    """A running command; it prints into pipes, which no disk and no limit can fill."""

    pid: int
    pipes: tuple[int, int]
    stdout: str = ""
    stderr: str = ""

    def wait(self) -> int:
        """Return the exit status; that of a process which was killed is minus the signal, as in subprocess."""
        _, status = os.waitpid(self.pid, 0)
        self.stdout, self.stderr = (_drained(pipe) for pipe in self.pipes)
        return os.waitstatus_to_exitcode(status)


def _drained(pipe: int) -> str:
    with open(pipe, "rb") as file:
        return file.read().decode("utf-8", "replace")


def start(args: Sequence[str], folder: Path, confine: Callable[[], None] | None = None) -> Child:
    """Start `segcal ARGS`, or a Python program, in `folder`; `confine` runs in the new process before anything else.

    The command must print less than a pipe holds (64 KiB).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    out, err = os.pipe(), os.pipe()
    pid = os.fork()
    if pid:
        os.close(out[1])
        os.close(err[1])
        return Child(pid, (out[0], err[0]))
    status = 70
    try:
        os.dup2(out[1], 1)
        os.dup2(err[1], 2)
        status = _become_segcal(args, folder, confine)
    finally:
        os._exit(status)


def _become_segcal(args: Sequence[str], folder: Path, confine: Callable[[], None] | None) -> int:
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes ignore it
    sys.argv = ["segcal", *args]
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8")
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", write_through=True)
    if confine is not None:
        confine()
    from segcal.cli import main

    try:
        exec(args[1], {}) if args[0] == PYTHON else main()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    return status


def finished(args: Sequence[str], folder: Path, confine: Callable[[], None] | None = None) -> tuple[int, str]:
    """Run a command to its end; return its exit status and what it printed on standard error."""
    child = start(args, folder, confine)
    status = child.wait()
    return status, child.stderr
