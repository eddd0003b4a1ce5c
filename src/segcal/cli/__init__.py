"""The command line: one file per command, listed in `segcal.cli.app`."""

import io
import signal
import sys


def main() -> None:
    """Run the command line."""
    from segcal.cli.app import app

    for stream in (sys.stdout, sys.stderr):  # in an encoding without such a character it is written as an escape
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # as Ctrl-C does, so that nothing half-written is left behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    app()
