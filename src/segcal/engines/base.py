"""The engine of a single process, which the others extend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Track = Callable[[Sequence[Any]], Iterable[Any]]
"""Goes through items, perhaps with a progress bar."""


class Engine:
    """One process that maps one case after the other."""

    is_first = True
    """True if this process receives the results, prints and publishes."""

    is_alone = True
    """True if all cases are mapped by this process."""

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], *, track: Track = iter
    ) -> Iterator[Result]:
        """Yield the result of every item in the order of the items, on the first process; nothing on the others."""
        for item in track(items) if items else ():
            yield function(item)

    def share(self, compute: Callable[[], Result]) -> Result:
        """Return what the first process computes to all processes, each of which waits for it."""
        return compute()
