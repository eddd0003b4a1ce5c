"""Duration of a function: the median of repeated runs, all in this process."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

console = Console(width=118)


def milliseconds(function: Callable[[], Any], *, repetitions: int = 15, warm_up: int = 2) -> float:
    """Median time of a call."""
    for _ in range(warm_up):
        function()
    times = []
    for _ in range(repetitions):
        start = perf_counter()
        function()
        times.append(perf_counter() - start)
    return 1e3 * statistics.median(times)


def table(title: str, *columns: str) -> Table:
    """A plain table; the first column is text, the others are numbers."""
    result = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for k, column in enumerate(columns):
        result.add_column(column, justify="left" if k == 0 else "right")
    return result


def scene(classes: int = 11, size: tuple[int, ...] = (360, 480), batch: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of smooth regions with a little noise, and labels whose outlines differ from theirs, as of a network."""
    generator = torch.Generator().manual_seed(0)
    mode = "bilinear" if len(size) == 2 else "trilinear"

    def smooth(scale: float) -> torch.Tensor:
        coarse = torch.randn(batch, classes, *(max(2, length // 48) for length in size), generator=generator)
        return scale * torch.nn.functional.interpolate(coarse, size=size, mode=mode)

    logits = smooth(8.0)
    labels = (logits + smooth(2.0)).argmax(dim=1)
    return logits + 0.3 * torch.randn(logits.shape, generator=generator), labels
