"""Damage that knows nothing of the format."""

from __future__ import annotations

from collections.abc import Callable
from random import Random


def _flip(rng: Random, content: bytes) -> bytes:
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 4, 16))):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _set(rng: Random, content: bytes) -> bytes:
    found = bytearray(content)
    found[rng.randrange(len(found))] = rng.choice((0, 1, 10, 34, 44, 127, 128, 255))
    return bytes(found)


def _span(rng: Random, content: bytes) -> slice:
    start = rng.randrange(len(content))
    return slice(start, min(len(content), start + rng.choice((1, 2, 4, 16, 100, 1000))))


def _cut(rng: Random, content: bytes) -> bytes:
    span = _span(rng, content)
    return content[: span.start] + content[span.stop :]


def _repeat(rng: Random, content: bytes) -> bytes:
    span = _span(rng, content)
    return content[: span.stop] + content[span] * rng.choice((1, 1, 30)) + content[span.stop :]


def _insert(rng: Random, content: bytes) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + rng.randbytes(rng.choice((1, 2, 8, 64))) + content[at:]


def _blank(rng: Random, content: bytes) -> bytes:
    span = _span(rng, content)
    return content[: span.start] + rng.choice((b"\0", b"\xff", b" ")) * (span.stop - span.start) + content[span.stop :]


def _truncate(rng: Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content))]


def _extend(rng: Random, content: bytes) -> bytes:
    return content + rng.randbytes(rng.choice((1, 4, 100)))


def _empty(rng: Random, content: bytes) -> bytes:
    return b""


def _noise(rng: Random, content: bytes) -> bytes:
    return rng.randbytes(len(content))


def _pickled(rng: Random, content: bytes) -> bytes:
    return b"cposix\nsystem\n(S'true'\ntR."


_ALL: tuple[Callable[[Random, bytes], bytes], ...] = (
    _flip, _set, _cut, _repeat, _insert, _blank, _truncate, _extend, _empty, _noise, _pickled,
)  # fmt: skip
_WEIGHTS = (10, 6, 4, 3, 4, 3, 4, 2, 1, 1, 1)


def mutate_bytes(rng: Random, content: bytes) -> bytes:
    """Return the content with one kind of damage somewhere."""
    if not content:
        return rng.randbytes(rng.choice((1, 4, 100)))
    return rng.choices(_ALL, _WEIGHTS)[0](rng, content)
