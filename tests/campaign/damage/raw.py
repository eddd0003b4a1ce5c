"""Damage that knows nothing of the format."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

_KINDS = ("flip",) * 10 + ("set",) * 6 + ("cut", "insert", "cut", "insert", "cut", "insert", "repeat", "repeat")
_KINDS += ("blank", "blank", "truncate", "truncate", "truncate", "extend", "empty", "noise", "pickle")


def damage_bytes(draw: DrawFn, content: bytes) -> bytes:
    """Return the content with one kind of damage somewhere."""
    if not content:
        return draw(st.binary(min_size=1, max_size=100))
    kind, start = draw(st.sampled_from(_KINDS)), draw(st.integers(0, len(content) - 1))
    stop = min(len(content), start + draw(st.sampled_from((1, 2, 4, 16, 100, 1000))))
    before, span, after = content[:start], content[start:stop], content[stop:]
    if kind in ("flip", "set"):
        odd = st.sampled_from((0, 1, 10, 34, 44, 127, 128, 255))
        byte = content[start] ^ (1 << draw(st.integers(0, 7))) if kind == "flip" else draw(odd)
        return before + bytes([byte]) + content[start + 1 :]
    new = {
        "cut": st.just(b""),
        "truncate": st.just(b""),
        "repeat": st.sampled_from((2, 2, 31)).map(lambda times: span * times),
        "blank": st.sampled_from((b"\0", b"\xff", b" ")).map(lambda byte: byte * len(span)),
        "insert": st.binary(min_size=1, max_size=64).map(lambda some: some + span),
        "noise": st.binary(min_size=1, max_size=64),
        "extend": st.binary(min_size=1, max_size=100).map(lambda some: span + after + some),
        "empty": st.just(b""),
        "pickle": st.just(b"cposix\nsystem\n(S'true'\ntR."),
    }[kind]
    if kind in ("empty", "pickle"):
        before = b""
    return before + draw(new) + (b"" if kind in ("truncate", "extend", "empty", "pickle") else after)
