"""Denormal numbers, which `torch.set_flush_denormal(True)` turns into 0: labels are compared without that."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_LEAST = 5e-324


def with_denormals(function: Callable[P, R]) -> Callable[P, R]:
    """Compute a function with denormal numbers, whatever the setting of the calling thread."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling() or _LEAST * 1.0 > 0:  # a flushed product is 0
            return function(*args, **kwargs)
        torch.set_flush_denormal(False)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_flush_denormal(True)

    return run


def least_gap(dtype: torch.dtype) -> float:
    """Return the least difference of two numbers that differ even if denormal numbers are flushed to 0.

    float16 is compared as float32, where it has no denormal numbers.
    """
    limits = torch.finfo(dtype)
    return limits.tiny * limits.eps if dtype == torch.float16 else limits.tiny
