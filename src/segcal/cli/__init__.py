"""The command line: one file per command, listed in `segcal.cli.app`."""

from __future__ import annotations

import io
import os
import signal
import sys
from threading import Timer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
"""Waiting of PyTorch's threads after an operation: asleep. By default they spin for some milliseconds, on cores that
other processes of the same command, or the thread that reads and writes files, need. OpenMP reads this once, when torch
is imported, so that a library cannot decide it for the program that imports it; the command line can."""


def main() -> None:
    """Run the command line."""
    for name, value in WAITING.items():
        os.environ.setdefault(name, value)
    from segcal.cli.app import app

    for stream in (sys.stdout, sys.stderr):  # in an encoding without such a character it is written as an escape
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # as Ctrl-C does, so that nothing half-written is left behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.unraisablehook = _repeat_signal
    app(prog_name="segcal")


def _repeat_signal(lost: UnraisableHookArgs) -> None:
    """Repeat Ctrl-C or SIGTERM that came while a finalizer ran, in which exceptions are printed and lost."""
    number = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}.get(lost.exc_type)
    if number is None:
        sys.__unraisablehook__(lost)
        return
    again = Timer(0.05, os.kill, (os.getpid(), number))  # the finalizer has ended by then
    again.daemon = True
    again.start()
