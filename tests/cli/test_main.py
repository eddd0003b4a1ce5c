"""What the command line sets before anything else is imported."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from segcal import cli
from support.commands import refuse


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
