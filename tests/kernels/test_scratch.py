"""Scratch memory: arrays of the wanted shapes that do not overlap, kept between calls unless they are large."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from segcal.kernels.cpu import scratch
from segcal.kernels.cpu.scratch import scratch_arrays


def filled(*wanted: tuple[tuple[int, ...], Any]) -> list[np.ndarray]:
    """Arrays of which each holds its own number."""
    arrays = scratch_arrays(*wanted)
    for k, array in enumerate(arrays):
        array[...] = k + 1
    return arrays


def test_arrays_have_their_shapes_and_do_not_overlap() -> None:
    wanted: list[tuple[tuple[int, ...], Any]] = [
        ((3, 5), np.float32),
        ((7,), np.uint8),
        ((9, 4), np.int16),
        ((2, 2), np.int32),
    ]
    for k, (array, (shape, dtype)) in enumerate(zip(filled(*wanted), wanted, strict=True)):
        assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
        assert (array == k + 1).all()
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous


def test_memory_is_kept_by_its_thread_and_not_if_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_own", threading.local())
    monkeypatch.setattr(scratch, "_KEPT", 10_000)
    (small,) = scratch_arrays(((100,), np.float32))
    (large,) = scratch_arrays(((5_000,), np.float32))
    (again,) = scratch_arrays(((50,), np.float32))
    assert np.shares_memory(small, again)
    assert not np.shares_memory(small, large)
    elsewhere: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: elsewhere.extend(scratch_arrays(((100,), np.float32))))
    thread.start()
    thread.join()
    assert not np.shares_memory(small, elsewhere[0])
