"""Prefetching: a thread computes the next item of an iterator while the caller uses the last one."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar, cast

T = TypeVar("T")

_END = object()


def prefetch(items: Iterable[T]) -> Generator[T, None, None]:
    """Yield the items of an iterable, each computed by a thread while the one before it is used.

    There are never more than two: the one in use and the next. An error in computing an item is raised when that item
    is asked for, after everything before it. Close the iterator to end it early; that waits for the item in work.

    Examples:
        >>> list(prefetch(n * n for n in range(4)))
        [0, 1, 4, 9]
    """
    source = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="segcal-prefetch") as pool:
        following: Future[object] = pool.submit(next, source, _END)
        while (item := following.result()) is not _END:
            following = pool.submit(next, source, _END)
            yield cast(T, item)
            del item  # not held while the next one is waited for
