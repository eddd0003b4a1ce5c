"""The command line: one file per command, listed in `segcal.cli.app`."""

import signal
import sys


def main() -> None:
    """Run the command line."""
    from segcal.cli.app import app

    # as Ctrl-C does, so that nothing half-written is left behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    app()
