"""Kernels directly after an operation of PyTorch, whose threads still spin then."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from benchmarks.timing import console, scene, table
from segcal.functional.division import scaled_probabilities

SHAPES = ((11, (180, 240)), (11, (360, 480)), (21, (512, 512)))
ROUNDS = 60


def after_pytorch() -> None:
    """Print the time of calibrated probabilities alone and after an operation of PyTorch."""
    shown = table(
        f"probabilities of one temperature, {torch.get_num_threads()} threads, ms (median of {ROUNDS})",
        "logits", "alone", "after an operation", "ratio",
    )  # fmt: skip
    operand = torch.rand(400, 400)
    for classes, size in SHAPES:
        logits, _ = scene(classes, size)
        heat = torch.full((), 1.3).expand(1, 1, *size)
        alone = _milliseconds(lambda z=logits, t=heat: scaled_probabilities(z, t))  # type: ignore[misc]
        after = _milliseconds(lambda z=logits, t=heat: scaled_probabilities(z, t), operand.exp)  # type: ignore[misc]
        what = f"{classes} x {size[0]} x {size[1]}"
        shown.add_row(what, f"{alone:.2f}", f"{after:.2f}", f"{after / alone:.2f}")
    console.print(shown)


def _milliseconds(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    times = []
    for _ in range(ROUNDS):
        before()
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return 1e3 * median(times)
