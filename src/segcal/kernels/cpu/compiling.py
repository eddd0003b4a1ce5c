"""Tools that the compiled kernels share: the compiler, vectorizable exp and log, cells of probability, and threads.

Machine code is kept on disk by numba, next to the source or in a folder of the user. numba stores pickle files, and to
read one is to run it: a folder that another user owns, or that everybody may write to, is not used.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
import torch
from torch import Tensor

from segcal.kernels.constants import CELLS, OCTAVES
from segcal.types import Array

F = TypeVar("F", bound=Callable[..., Any])

_RANGES = 4  # of pixels for each thread
BLOCK = 256  # pixels whose intermediate results stay in the first-level cache


def compiled(function: F) -> F:
    """Compile to machine code on first use and keep it on disk; contraction to fused multiply-add is allowed.

    To assign an array to a slice makes the first use take two seconds longer: numba compiles the text of an error.
    """
    return _compile(function)


def summing(function: F) -> F:
    """Compile sums along a block, whose terms may be added in any order: otherwise they are not vectorized."""
    return _compile(function, "reassoc")


def inlined(function: F) -> F:
    """Compile into the caller, where arguments that are constants are known to be constant."""
    return _compile(function, inline="always")


def _compile(function: F, *liberties: str, **options: Any) -> F:
    options |= {"nogil": True, "error_model": "numpy", "fastmath": {"contract", *liberties}}
    try:
        kept = numba.njit(cache=True, **options)(function)
        if _is_trusted(folder := Path(kept.stats.cache_path)):
            return cast(F, kept)
        _warn_once(f"other users may write to {folder}")
    except (RuntimeError, OSError):  # "no locator available"
        _warn_once("neither the folder of the package nor that of the user can be written")
    return cast(F, numba.njit(**options)(function))


def _is_trusted(folder: Path) -> bool:
    """Return whether a folder belongs to this user or to root, and others may not write to it."""
    if os.name != "posix":  # Windows: the folder inherits the rights of the user's profile
        return True
    status = folder.stat()
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & stat.S_IWOTH


@cache
def _warn_once(reason: str) -> None:
    logging.getLogger("segcal").warning(
        "compiled kernels are not kept on disk: %s. Each process compiles them again, which takes up to a minute; "
        "set NUMBA_CACHE_DIR to a folder of your own to avoid this.",
        reason,
    )


@compiled
def exp_below_zero(x: float) -> float:
    """Return e**x for x <= 0, to 2 units in the last place; below -700 the value at -700, too small to matter."""
    x = max(x, -700.0)
    shifted = x * 1.4426950408889634 + 6755399441055744.0  # 1.5 * 2**52: rounds to an integer held in the low bits
    k = shifted - 6755399441055744.0
    r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    p = 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    bits = np.float64(p).view(np.int64) + (np.float64(shifted).view(np.int64) << 52)
    return np.int64(bits).view(np.float64)


@compiled
def exp_float32(x: float) -> float:
    """Return e**x in float32, to about 1e-7; beyond +-87 the value there."""
    x = min(max(x, np.float32(-87)), np.float32(87))  # type: ignore[assignment]
    shifted = x * np.float32(1.44269504) + np.float32(12582912)  # 1.5 * 2**23: as above
    k = shifted - np.float32(12582912)
    r = (x - k * np.float32(0.693359375)) + k * np.float32(2.12194440e-4)
    p = np.float32(1.9875691e-4)
    p = p * r + np.float32(1.3981999e-3)
    p = p * r + np.float32(8.3334519e-3)
    p = p * r + np.float32(4.1665796e-2)
    p = p * r + np.float32(1.6666666e-1)
    p = p * r + np.float32(0.5)
    p = p * r * r + r + np.float32(1)
    bits = np.float32(p).view(np.int32) + (np.float32(shifted).view(np.int32) << np.int32(23))
    return np.int32(bits).view(np.float32)  # type: ignore[return-value]


@compiled
def log_above_one(x: float) -> float:
    """Return the natural logarithm for x >= 1, with a relative error of about 1e-16."""
    bits = np.float64(x).view(np.int64)
    high = (bits - 0x3FE6A09E667F3BCD) >> 52  # exponent such that the mantissa lies in [sqrt(1/2), sqrt(2))
    f = np.int64(bits - (high << 52)).view(np.float64)
    t = (f - 1.0) / (f + 1.0)
    u = t * t
    p = 1.0 / 21.0
    p = p * u + 1.0 / 19.0
    p = p * u + 1.0 / 17.0
    p = p * u + 1.0 / 15.0
    p = p * u + 1.0 / 13.0
    p = p * u + 1.0 / 11.0
    p = p * u + 1.0 / 9.0
    p = p * u + 1.0 / 7.0
    p = p * u + 1.0 / 5.0
    p = p * u + 1.0 / 3.0
    p = p * u + 1.0
    return float(high) * 0.6931471805599453 + 2.0 * t * p


@compiled
def largest_logits(logits: Array, at: int, n: int, top: Array) -> None:
    """Find the largest logit of `n` pixels from `at` on."""
    # slices of one row: the compiler does not vectorize accesses with two indices
    first = logits[0, at : at + n]
    for i in range(n):
        top[i] = first[i]
    for c in range(1, logits.shape[0]):
        row = logits[c, at : at + n]
        for i in range(n):
            top[i] = max(top[i], row[i])


@compiled
def cell_of(score: float) -> int:
    """Return the cell of a probability; see `segcal.functional.scores.cell_of`. Without branches, to vectorize."""
    rest = 1.0 - score
    near = (np.float64(min(score, rest)).view(np.int64) >> 43) - ((1022 - OCTAVES) << 9)
    inside = min(max(near, np.int64(0)), np.int64(CELLS // 2 - 1))
    return inside if score < 0.5 else CELLS - 1 - inside  # type: ignore[return-value]


def over_pixels(kernel: Callable[..., None], n: int, *arguments: Any, unit: int = BLOCK) -> None:
    """Run `kernel(*arguments, start, stop)` over ranges of pixels, several per thread, of whole units.

    A kernel must treat each unit by itself, so that no bit of its result depends on the number of threads.
    """
    threads = torch.get_num_threads()
    parts = 1 if threads == 1 else min(_RANGES * threads, max(1, n // (8 * BLOCK)))
    size = max(-(-n // (parts * unit)) * unit, 1)
    ranges = [(start, min(start + size, n)) for start in range(0, n, size)]
    run_all([partial(kernel, *arguments, start, stop) for start, stop in ranges])


def run_all(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run tasks on the calling thread and a pool, which take the next until none is left; return results in order.

    Kernels release the GIL, so that tasks run at the same time. There are more tasks than threads: PyTorch's threads
    spin for some milliseconds after each of its operations, and a thread that shares its core with one takes fewer.
    After an error, or an interrupt, which Python raises in the main thread, no further task begins.
    """
    threads = min(torch.get_num_threads(), len(tasks))
    if threads <= 1:
        return [task() for task in tasks]
    results: list[Any] = [None] * len(tasks)
    waiting = iter(range(len(tasks)))  # its `next` is atomic, so that no task is taken twice

    def take() -> None:
        try:
            for k in waiting:
                results[k] = tasks[k]()
        finally:  # after an error none are left for the other threads
            for _ in waiting:
                pass

    helpers = [_pool(os.getpid(), threads - 1).submit(take) for _ in range(threads - 1)]
    try:
        take()
    finally:
        failures = [helper.exception() for helper in helpers if not helper.cancel()]
    for failure in failures:
        if failure is not None:
            raise failure
    return results


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return the pool of a process; a forked one does not inherit threads.

    Threads inherit the setting of denormal numbers; kernels that compare labels need them.
    """
    return ThreadPoolExecutor(
        threads, thread_name_prefix="segcal", initializer=torch.set_flush_denormal, initargs=(False,)
    )


def as_numpy(values: Tensor) -> Array:
    """Return a tensor as a contiguous array, without a copy where memory order and precision allow."""
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    return values.detach().contiguous().resolve_neg().numpy()


def as_float32(values: Tensor) -> Array:
    """Return a tensor as a contiguous array of float32; values beyond its range become the largest finite ones."""
    if values.dtype == torch.float64:
        limits = np.finfo(np.float32)
        return np.clip(as_numpy(values), limits.min, limits.max).astype(np.float32)
    return as_numpy(values)
