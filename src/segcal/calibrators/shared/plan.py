"""Plan of an automatic choice: candidates scored on a sample in seconds, and the estimated time of trained ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import distributed

from segcal.training.processes import process_group

_LEAST_GROWTH = 0.1


@dataclass(frozen=True)
class Plan:
    """Candidates to try.

    Attributes:
        quick: Candidates that are scored on a sample, which takes seconds.
        seconds: Estimated seconds of the candidates that are trained.
        spent: Seconds that reading and estimating took.
        time_limit: Seconds allowed in all; None for any.
    """

    quick: tuple[str, ...]
    seconds: Mapping[str, float]
    spent: float = 0.0
    time_limit: float | None = None

    @property
    def left_out(self) -> tuple[str, ...]:
        """The trained candidates that are too expensive, until the rest fits in the time allowed.

        Examples:
            >>> Plan(("ts", "cts"), {"lts": 90.0}, time_limit=60.0).left_out
            ('lts',)
        """
        remaining, dropped = dict(self.seconds), list[str]()
        while self.time_limit is not None and remaining and self.spent + sum(remaining.values()) > self.time_limit:
            most = max(remaining, key=lambda name: remaining[name])
            dropped.append(most)
            del remaining[most]
        return tuple(dropped)

    @property
    def tried(self) -> tuple[str, ...]:
        """The candidates that are tried, in their order."""
        return (*self.quick, *(name for name in self.seconds if name not in self.left_out))

    def announcement(self) -> str:
        """Return the plan in a sentence or two."""
        trained = [f"{name} (about {_words(self.seconds[name])})" for name in self.tried if name in self.seconds]
        text = f"auto compares {', '.join(self.quick)} on a sample, in seconds"
        if trained:
            text += f", and trains {', '.join(trained)}"
        if self.left_out:
            names = ", ".join(f"{name} (about {_words(self.seconds[name])})" for name in self.left_out)
            text += f"; not tried because of the time limit of {_words(self.time_limit or 0)}: {names}"
        return text

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a fit report."""
        return {
            "seconds": dict(self.seconds),
            "left_out": list(self.left_out),
            "time_limit": self.time_limit,
            "announcement": self.announcement() if self.quick else None,
        }


def agreed(seconds: Mapping[str, float], device: torch.device) -> dict[str, float]:
    """Return the estimates of the first process of torchrun, so that all processes try the same candidates."""
    with process_group(device):
        if not distributed.is_initialized():
            return dict(seconds)
        values = torch.tensor(list(seconds.values()), dtype=torch.float64, device=device)
        distributed.broadcast(values, 0)
    return dict(zip(seconds, values.tolist(), strict=True))


def extrapolated(work: Callable[[int], Any], sizes: tuple[int, int], size: int) -> float:
    """Return how long work of a size takes, by the straight line through two smaller sizes.

    What does not depend on the size is thus counted once, and a first call loads and compiles what is needed. At least
    a tenth of the larger time is taken to grow with the size: another process may slow down the smaller work only,
    and the line would say that any size takes no time.
    """
    small, large = (min(each, size) for each in sizes)
    work(small)
    first = _seconds(lambda: work(small))
    if small == large:
        return first
    second = _seconds(lambda: work(large))
    slope = max((second - first) / (large - small), _LEAST_GROWTH * second / large)
    return second + slope * (size - large)


def _seconds(work: Callable[[], Any]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started


def _words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
