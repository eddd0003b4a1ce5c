"""Small operations on masks on the CPU, in numpy and on one thread; see `segcal.kernels.cpu` for why."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.cpu.compiling import as_numpy, compiled
from segcal.types import Array


def without(labels: Tensor, values: Sequence[int]) -> Tensor:
    """Twin of `segcal.functional.masks.without`."""
    return torch.from_numpy(np.isin(labels.numpy(), values, invert=True, kind="sort"))


def both(one: Tensor, other: Tensor) -> Tensor:
    """Twin of `segcal.functional.masks.both`."""
    return torch.from_numpy(one.numpy() & other.numpy())


def either(one: Tensor, other: Tensor) -> Tensor:
    """Twin of `segcal.functional.masks.either`."""
    return torch.from_numpy(one.numpy() | other.numpy())


def positions(mask: Tensor) -> Tensor:
    """Twin of `segcal.functional.masks.positions`."""
    return torch.from_numpy(np.flatnonzero(mask.numpy()))


@compiled
def _positions_in_rows(mask: Array, rows: Array, first: int, last: int, found: Array) -> int:
    count, length = 0, mask.shape[1]
    for row in rows:
        line = mask[row]
        for column in range(first, last):
            found[count] = row * length + column
            count += int(line[column])  # without a branch: a pixel outside is overwritten by the next
    return count


def positions_in_box(mask: Tensor, box: Sequence[slice]) -> Tensor:
    """Twin of `segcal.functional.masks.positions_in_box`."""
    values, last = as_numpy(mask), box[-1]
    rows = np.zeros(1, dtype=np.int64)
    for interval, length in zip(box[:-1], values.shape[:-1], strict=True):
        rows = (rows[:, np.newaxis] * length + np.arange(interval.start, interval.stop)).reshape(-1)
    found = np.empty(len(rows) * (last.stop - last.start) + 1, np.int64)
    count = _positions_in_rows(values.reshape(-1, values.shape[-1]), rows, last.start, last.stop, found)
    return torch.from_numpy(found[:count])
