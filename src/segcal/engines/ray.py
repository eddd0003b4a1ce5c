"""A Ray cluster: each case is a task, which Ray runs again if its worker is killed (`pip install segcal[ray]`)."""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from segcal.engines.base import Engine, Item, Result, Track
from segcal.types import InputError


class RayEngine(Engine):
    """The workers of a Ray cluster, all of which must see the folders of the data and of the output.

    A task has one CPU and, where the command computes on a GPU, one GPU.
    """

    is_alone = False

    def __init__(self, address: str | None = None) -> None:
        try:
            import ray  # noqa: PLC0415  (an extra)
        except ImportError as error:
            raise InputError("--engine ray needs Ray, which is not installed; pip install segcal[ray]") from error
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
