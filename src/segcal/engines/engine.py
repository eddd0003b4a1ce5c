"""Engines: one function over all cases, in their order, on one process, the processes of torchrun, or a Ray cluster."""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import distributed

from segcal.training.environment import launched
from segcal.training.processes import process_group
from segcal.types import InputError, extra

Item = TypeVar("Item")
Result = TypeVar("Result")
Track = Callable[[Sequence[Any]], Iterable[Any]]
"""Goes through items, perhaps with a progress bar."""

_ROUND = 16
"""Cases of each process between two gatherings: few enough to hold their results in memory."""

_PATIENCE = timedelta(days=7)  # processes may differ by hours; torchrun ends all of them if one fails


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
    if name == "ray":
        return RayEngine(address)
    return TorchrunEngine() if several else Engine()


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


class RayEngine(Engine):
    """The workers of a Ray cluster (`pip install segcal[ray]`), which must see the folders of data and output.

    A task has one CPU and, where the command computes on a GPU, one GPU.
    """

    is_alone = False

    def __init__(self, address: str | None = None) -> None:
        ray = extra("ray", "--engine ray needs Ray", "ray")
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of tasks ahead of the first that failed
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        if not ray.is_initialized():
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as error:
                reason = str(error).splitlines()[0]
                raise InputError(
                    f"the Ray cluster at '{address or 'auto'}' cannot be used ({reason}); start it, or give its "
                    "address and its token (RAY_AUTH_TOKEN)"
                ) from error
        self.ray: Any = ray

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], *, track: Track = iter
    ) -> Iterator[Result]:
        """Yield the results in the order of the items, with some tasks ahead."""
        ray, gpus = self.ray, int(torch.cuda.is_available())
        task = ray.remote(num_cpus=1, num_gpus=gpus)(_call)
        shared, ahead = ray.put(function), 2 * int(ray.cluster_resources().get("CPU", 1)) + 1
        waiting = (task.remote(shared, item, Path.cwd()) for item in items)
        started = deque(islice(waiting, ahead))
        with redirect_stdout(sys.stderr):  # where Ray reports workers that died
            try:
                for item in track(items) if items else ():
                    yield self._result(started.popleft(), item)
                    started.extend(islice(waiting, 1))
            finally:
                for left in started:
                    ray.cancel(left, force=True)

    def _result(self, task: Any, item: object) -> Any:
        exceptions = self.ray.exceptions
        try:
            return self.ray.get(task)
        except exceptions.RayTaskError as error:
            raise error.cause from error
        except exceptions.RayError as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"Ray could not finish case '{item}' ({reason}); run the command again") from error


def _call(function: Callable[[Any], Any], item: Any, folder: Path) -> Any:
    """Call a function in the working folder of the command, on which relative paths depend."""
    os.chdir(folder)
    return function(item)
