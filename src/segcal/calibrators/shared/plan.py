"""Plan of an automatic choice: the candidates that it will try, and their duration, estimated from a few timed fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from time import perf_counter
from typing import Any

import torch
from torch import distributed

from segcal.training.processes import process_group

_LEAST_GROWTH = 0.1


@dataclass(frozen=True)
class Plan:
    """Estimated seconds of each candidate, those that cannot be fitted and why, and the seconds allowed."""

    seconds: Mapping[str, float]
    failures: Mapping[str, str]
    time_limit: float | None

    @property
    def left_out(self) -> tuple[str, ...]:
        """The candidates that are too expensive: the most expensive ones, until the rest fits in the time allowed.

        The first, which is the fallback, is never left out.

        >>> Plan({"ts": 1.0, "cts": 5.0, "lts": 90.0}, {}, 10.0).left_out
        ('lts',)
        """
        remaining = dict(self.seconds)
        fallback = next(iter(remaining), None)
        dropped = []
        while self.time_limit is not None and len(remaining) > 1 and sum(remaining.values()) > self.time_limit:
            most = max((name for name in remaining if name != fallback), key=lambda name: remaining[name])
            dropped.append(most)
            del remaining[most]
        return tuple(dropped)

    @property
    def tried(self) -> tuple[str, ...]:
        """The candidates that are tried, in their order."""
        return tuple(name for name in self.seconds if name not in self.left_out)

    def remaining(self, name: str) -> str:
        """Return roughly how long a candidate and those after it take, in words.

        >>> Plan({"ts": 1.0, "cts": 5.0, "lts": 90.0}, {}, None).remaining("cts")
        'about 95 s'
        """
        rest = self.tried[self.tried.index(name) :]
        return f"about {_words(sum(self.seconds[each] for each in rest))}"

    def announcement(self) -> str:
        """Return the plan in a sentence or two."""
        parts = [f"{name} ({_words(self.seconds[name])})" for name in self.tried]
        total = sum(self.seconds[name] for name in self.tried)
        text = f"auto tries {', '.join(parts)}: about {_words(total)} in all"
        if self.left_out:
            names = ", ".join(f"{name} ({_words(self.seconds[name])})" for name in self.left_out)
            text += f"; left out by the time limit of {_words(self.time_limit or 0)}: {names}"
        return text

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a fit report."""
        return {
            "seconds": {name: seconds if isfinite(seconds) else None for name, seconds in self.seconds.items()},
            "left_out": list(self.left_out),
            "time_limit": self.time_limit,
            "announcement": self.announcement() if self.seconds else None,
        }


def agreed(seconds: Mapping[str, float], device: torch.device) -> dict[str, float]:
    """Return the estimates of the first process of torchrun, so that all processes try the same candidates."""
    with process_group(device):
        if not distributed.is_initialized():
            return dict(seconds)
        values = torch.tensor(list(seconds.values()), dtype=torch.float64, device=device)
        distributed.broadcast(values, 0)
    return dict(zip(seconds, values.tolist(), strict=True))


def seconds_of(work: Callable[[], Any]) -> float:
    """Return how long a call takes the second time, when everything is compiled and loaded."""
    work()
    return _seconds(work)


def extrapolated(work: Callable[[int], Any], sizes: tuple[int, int], size: int) -> float:
    """Return how long work of a size takes, by the straight line through two smaller sizes.

    What does not depend on the size is thus counted once, and nothing is counted that is compiled or loaded only once.
    Each size is timed twice, and the shorter time counts. At least a tenth of the larger one is taken to grow with the
    size: another process may slow down the smaller one only, and the line would say that any size takes no time.
    """
    small, large = (min(each, size) for each in sizes)
    work(small)
    first = _shortest(lambda: work(small))
    if small == large:
        return first
    second = _shortest(lambda: work(large))
    slope = max((second - first) / (large - small), _LEAST_GROWTH * second / large)
    return second + slope * (size - large)


def _shortest(work: Callable[[], Any]) -> float:
    return min(_seconds(work) for _ in range(2))


def _seconds(work: Callable[[], Any]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started


def _words(seconds: float) -> str:
    if not isfinite(seconds):
        return "not estimated"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
