"""The engine of a single process, which the others extend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, TypeVar

from segcal.training.environment import launched
from segcal.types import InputError

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


def engine_of(name: str | None = None, address: str | None = None) -> Engine:
    """Return the engine with this name; by default torchrun's if it started this process, else a single process.

    Args:
        name: "ray", or None.
        address: Address of a running Ray cluster, such as "auto" or "ray://host:10001"; by default Ray looks for one
            and starts one on this machine if there is none.
    """
    several = launched()[1] > 1
    if name not in (None, "ray"):
        raise InputError(f"the engine must be ray, got '{name}'; leave it out to use this process, or torchrun's")
    if name is None and address is not None:
        raise InputError("an address is that of a Ray cluster; use it with --engine ray")
    if name == "ray" and several:
        raise InputError("torchrun divides the cases between its processes already; start 'segcal' without torchrun")
    if name is None and not several:
        return Engine()
    kind = import_module(f"segcal.engines.{name or 'torchrun'}").ENGINE
    engine: Engine = kind(address) if name == "ray" else kind()
    return engine
