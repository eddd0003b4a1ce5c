"""The engine of a single process, which the others extend, and that of the processes that torchrun started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import distributed

from segcal.training.environment import launched
from segcal.training.processes import process_group

Item = TypeVar("Item")
Result = TypeVar("Result")
Track = Callable[[Sequence[Any]], Iterable[Any]]
"""Goes through items, perhaps with a progress bar."""

_ROUND = 16
"""Cases of each process between two gatherings: few enough to hold their results in memory."""

_PATIENCE = timedelta(days=7)  # processes may differ by hours; torchrun ends all of them if one fails


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


class TorchrunEngine(Engine):
    """The processes of torchrun, each of which maps every n-th case; all must make the same calls in the same order."""

    is_alone = False

    def __init__(self) -> None:
        self.rank, self.world = launched()
        self.is_first = self.rank == 0

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], *, track: Track = iter
    ) -> Iterator[Result]:
        """Yield the results in the order of the items on the first process; nothing on the others."""
        own = items[self.rank :: self.world]
        mine = map(function, track(own) if own else ())
        for start in range(0, len(items), _ROUND * self.world):
            parts = self._gathered(list(islice(mine, _ROUND)))
            for k in range(min(_ROUND * self.world, len(items) - start) if self.is_first else 0):
                yield parts[k % self.world][k // self.world]

    def share(self, compute: Callable[[], Result]) -> Result:
        """Return what the first process computes to all processes."""
        content: list[Any] = [compute() if self.is_first else None]
        with process_group(torch.device("cpu"), patience=_PATIENCE):
            distributed.broadcast_object_list(content)
        shared: Result = content[0]
        return shared

    def _gathered(self, results: list[Any]) -> list[list[Any]]:
        """Return the results of every process on the first process."""
        parts: list[Any] | None = [None] * self.world if self.is_first else None
        with process_group(torch.device("cpu"), patience=_PATIENCE):
            distributed.gather_object(results, parts)
        return parts or []
