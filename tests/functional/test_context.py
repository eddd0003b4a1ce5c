"""Context features: against plain loops over pixels, by hand, and the kernel against the plain form."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from segcal.functional.context import FEATURES, REACH, WORDS, context_features, context_temperature
from support.engines import CPU, PLAIN

SIZES = [(50,), (1, 1), (1, 2), (3, 40), (30, 7), (37, 41), (9, 140), (4, 5, 6), (1, 30, 2), (14, 17, 9)]


def logits_of(size: tuple[int, ...], classes: int = 4, batch: int = 1, seed: int = 0) -> Tensor:
    """Smooth regions with noise, so that there are boundaries near and far."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(batch, classes, *(max(1, n // 8) for n in size), generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=size, mode="nearest")
    return 6 * smooth + 0.5 * torch.randn(batch, classes, *size, generator=generator)


def mirror(k: int, n: int) -> int:
    """Step by step: walk back and forth between the ends, from 0 on; to the left it is the same."""
    if n == 1:
        return 0
    at, step = 0, 1
    for _ in range(abs(k)):
        if not 0 <= at + step < n:
            step = -step
        at += step
    return at


def slow_features(logits: np.ndarray) -> np.ndarray:
    """One image `[L, *S]`, pixel by pixel."""
    size = logits.shape[1:]
    pixels = list(np.ndindex(*size))
    entropy, margin, near = np.zeros(size), np.zeros(size), np.zeros(size)
    predicted = {at: int(np.argmax([float(z) for z in logits[(slice(None), *at)]])) for at in pixels}
    for at in pixels:
        z = sorted((float(value) for value in logits[(slice(None), *at)]), reverse=True)
        powers = [math.exp(value - z[0]) for value in z]
        probs = [power / math.fsum(powers) for power in powers]
        entropy[at] = -math.fsum(p * math.log(p) for p in probs if p > 0)
        margin[at] = min(z[0] - z[1], 10.0) if len(z) > 1 else 10.0
        for axis, step in product(range(len(size)), (-1, 1)):
            there = tuple(k + step * (a == axis) for a, k in enumerate(at))
            near[at] = max(near[at], float(predicted.get(there, predicted[at]) != predicted[at]))
    result = [entropy, margin, np.zeros(size)]
    for at in pixels:
        for reach in (0, 1, 3, 7, 15):
            box = tuple(slice(max(k - reach, 0), k + reach + 1) for k in at)
            result[2][at] += not near[box].any()
    for width in (9, 25):
        for values in (entropy, margin, near):
            mean = values
            for axis, n in enumerate(size):
                index = [[mirror(k + d, n) for d in range(-(width // 2), width // 2 + 1)] for k in range(n)]
                mean = np.stack([np.take(mean, row, axis).mean(axis) for row in index], axis)
            result.append(mean)
    return np.stack(result)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("classes", [1, 4])
def test_features_are_what_plain_loops_find(size: tuple[int, ...], classes: int) -> None:
    logits = logits_of(size, classes, batch=2)
    expected = np.stack([slow_features(image.double().numpy()) for image in logits])
    assert expected.shape[1] == len(FEATURES) == len(WORDS)
    np.testing.assert_allclose(PLAIN.context_features(logits.double()).numpy(), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(CPU.context_features(logits).numpy(), expected, rtol=0, atol=5e-6)


def test_a_straight_boundary_by_hand() -> None:
    """Forty columns, of which the first twenty are predicted as class 0: the boundary lies in columns 19 and 20."""
    logits = torch.zeros(1, 2, 5, 40)
    logits[:, 0, :, :20] = logits[:, 1, :, 20:] = 3.0
    found = dict(zip(FEATURES, context_features(logits)[0, :, 2], strict=True))
    assert found["margin"].tolist() == [3.0] * 40
    assert found["distance"].tolist() == [5.0] * 4 + [4.0] * 8 + [3.0] * 4 + [2.0] * 2 + [1.0] + [0.0] * 2 + [
        1.0,
        *[2.0] * 2,
        *[3.0] * 4,
        *[4.0] * 8,
        *[5.0] * 4,
    ]
    shares = [min(max(k - 14, 0), 2) if k < 20 else min(max(25 - k, 0), 2) for k in range(40)]
    torch.testing.assert_close(found["boundary in 9"], torch.tensor(shares) / 9, rtol=0, atol=1e-6)


@given(st.integers(0, 2**16), st.floats(-100, 100))
@settings(max_examples=20, deadline=None)
def test_a_constant_added_to_all_logits_changes_nothing(seed: int, constant: float) -> None:
    logits = logits_of((12, 9), seed=seed).double()
    shift = constant * torch.randn(1, 1, 12, 9, generator=torch.Generator().manual_seed(seed)).double()
    found, moved = PLAIN.context_features(logits), PLAIN.context_features(logits + shift)
    torch.testing.assert_close(moved, found, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_enormous_logits_give_finite_features(dtype: torch.dtype) -> None:
    logits = logits_of((20, 21)).double()
    large = (logits / logits.abs().max() * torch.finfo(dtype).max).to(dtype)
    for engine in (CPU, PLAIN):
        found: Tensor = engine.context_features(large)
        assert found.isfinite().all()
        assert (found >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_the_bits_of_the_same_numbers_in_float32(dtype: torch.dtype) -> None:
    logits = logits_of((19, 300)).to(dtype)
    assert torch.equal(CPU.context_features(logits), CPU.context_features(logits.float()))
    weights, zero = torch.linspace(-0.2, 0.2, len(FEATURES)).double(), torch.zeros((), dtype=torch.float64)
    settings: Any = (weights, zero, zero.repeat(4), (0.05, 100.0), zero, zero)
    assert torch.equal(CPU.context_temperature(logits, *settings), CPU.context_temperature(logits.float(), *settings))


@pytest.mark.parametrize("size", [(90, 33), (70, 9, 8)])
def test_slabs_with_context_give_the_same_bits(size: tuple[int, ...]) -> None:
    logits = logits_of(size)
    whole = CPU.context_features(logits)
    for start in range(0, size[0], 8):
        low, high = max(0, start - REACH), min(start + 8 + REACH, size[0])
        part = CPU.context_features(logits[:, :, low:high])[:, :, start - low : start - low + 8]
        assert torch.equal(part, whole[:, :, start : start + 8])


@pytest.mark.parametrize("size", [(45,), (37, 41), (14, 17, 9)])
def test_the_compiled_temperature_is_the_plain_one(size: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    weights, offsets = (0.3 * torch.randn(n, generator=generator).double() for n in (len(FEATURES), 4))
    intercept, logits = torch.tensor(0.2).double(), logits_of(size, batch=2)
    settings: Any = (weights, intercept, offsets)
    zero = torch.tensor(0.0).double()
    free = PLAIN.context_temperature(logits.double(), *settings, (0.0, torch.inf), zero, zero)
    low, high = (float(free.quantile(share)) for share in (0.1, 0.9))
    found = context_temperature(logits, *settings, (low, high), zero, zero)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), free.clamp(low, high), rtol=3e-6, atol=0)
    floor = free.median()
    for scores in (logits, logits.requires_grad_(True)):  # compiled and not
        found = context_temperature(scores, *settings, (low, high), floor, 0 * floor)
        torch.testing.assert_close(found.double(), free.clamp(low, high).clamp(min=floor), rtol=1e-5, atol=0)
        soft = context_temperature(scores, *settings, (low, high), floor, 0 * floor + 0.1)
        expected = (floor * (1 + (free / floor) ** 10) ** 0.1).clamp(low, high)  # a softplus of log T is this of T
        torch.testing.assert_close(soft.double(), expected, rtol=1e-5, atol=0)
