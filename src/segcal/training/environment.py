"""Variables that torchrun sets for each process it starts, checked: a stray one must not make a command do nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def launched() -> tuple[int, int]:
    """Return the rank of this process and the number of processes; (0, 1) where torchrun did not start it.

    Raises:
        InputError: RANK and WORLD_SIZE do not belong together.
    """
    given = {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    for name, text in given.items():
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise _refused(
                f"the environment variable {name} must be a whole number, as torchrun sets it, "
                f"got '{text[:50]}'; unset it"
            )
    if ("RANK" in given) != ("WORLD_SIZE" in given):
        alone, missing = ("RANK", "WORLD_SIZE") if "RANK" in given else ("WORLD_SIZE", "RANK")
        if given[alone] == {"RANK": "0", "WORLD_SIZE": "1"}[alone]:
            return 0, 1
        raise _refused(
            f"the environment variables RANK and WORLD_SIZE must be set together, as torchrun does, "
            f"got {alone}={given[alone]} and no {missing}; unset {alone}"
        )
    rank, world = int(given.get("RANK", "0")), int(given.get("WORLD_SIZE", "1"))
    if not rank < world:
        raise _refused(
            f"the environment variable RANK must be below WORLD_SIZE, got RANK={rank} and WORLD_SIZE={world}; "
            "unset both, or start the command with torchrun"
        )
    return rank, world


@contextmanager
def alone() -> Iterator[None]:
    """Let this process work as if torchrun had started no others."""
    given = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(given)


def _refused(sentence: str) -> Exception:
    from segcal.types import InputError  # noqa: PLC0415  (brings PyTorch along, which help must not wait for)

    return InputError(sentence)
