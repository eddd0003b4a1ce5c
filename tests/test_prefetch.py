"""What comes next is computed while the current item is used."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from segcal.files.prefetch import prefetch


def test_the_next_item_is_computed_meanwhile_and_no_more() -> None:
    computed, begun = list[int](), threading.Semaphore(0)

    def items() -> Iterator[int]:
        for k in range(4):
            computed.append(k)
            begun.release()
            yield k

    for k in prefetch(items()):
        for _ in range(2 if k == 0 else int(k < 3)):
            assert begun.acquire(timeout=60), "the next item is begun although this one is still in use"
        assert computed == list(range(min(k + 2, 4)))


def test_an_error_comes_after_everything_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise ZeroDivisionError

    ahead = prefetch(items())
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(ZeroDivisionError):
        next(ahead)


def test_closing_waits_for_the_item_in_work() -> None:
    ended, go = list[str](), threading.Event()

    def items() -> Iterator[int]:
        yield 1
        go.wait(60)
        ended.append("computed")
        yield 2

    ahead = prefetch(items())
    assert next(ahead) == 1
    threading.Timer(0.05, go.set).start()
    ahead.close()
    assert ended == ["computed"]


def test_an_item_is_not_held_once_the_next_is_asked_for() -> None:
    class Large:
        pass

    found = list[weakref.ref[Large]]()

    def items() -> Iterator[Large]:
        for _ in range(2):
            item = Large()
            found.append(weakref.ref(item))
            yield item
            del item

    ahead = prefetch(items())
    next(ahead)
    next(ahead)
    gc.collect()
    assert found[0]() is None
    ahead.close()
