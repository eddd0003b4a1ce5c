"""Run as a script by the tests: several commands one after the other in one process, as torchrun starts them."""

from __future__ import annotations

import json
import sys

from segcal.cli.app import app

if __name__ == "__main__":
    for arguments in json.loads(sys.argv[1]):
        app(arguments, standalone_mode=False)
