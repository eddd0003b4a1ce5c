"""Stray variables of torchrun are refused with a sentence; the real ones are read."""

from __future__ import annotations

import pytest

from segcal.training.environment import launched
from segcal.types import InputError


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, (0, 1)),
        ({"RANK": "", "WORLD_SIZE": ""}, (0, 1)),
        ({"RANK": "0"}, (0, 1)),
        ({"WORLD_SIZE": "1"}, (0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "2"}, (2, 3)),
    ],
)
def test_what_torchrun_says(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], found: tuple[int, int]) -> None:
    _only(monkeypatch, given)
    assert launched() == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"RANK": "1"}, "got RANK=1 and no WORLD_SIZE; unset RANK"),
        ({"WORLD_SIZE": "2"}, "got WORLD_SIZE=2 and no RANK; unset WORLD_SIZE"),
        ({"RANK": "3", "WORLD_SIZE": "3"}, "RANK must be below WORLD_SIZE, got RANK=3 and WORLD_SIZE=3"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK must be below WORLD_SIZE"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK must be a whole number, as torchrun sets it, got '-1'"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "got 'one'; unset it"),
        ({"RANK": "0", "WORLD_SIZE": "1" * 30}, "WORLD_SIZE must be a whole number"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK must be a whole number"),
    ],
)
def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], message: str) -> None:
    _only(monkeypatch, given)
    with pytest.raises(InputError, match=message):
        launched()


def _only(monkeypatch: pytest.MonkeyPatch, given: dict[str, str]) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
