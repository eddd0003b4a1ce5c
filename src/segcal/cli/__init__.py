"""The command line: one file per command, listed in `segcal.cli.app`."""

import io
import os
import signal
import sys

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
    app(prog_name="segcal")
