"""Labels that are relabelled, by hand, by the kernel and by its plain form."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch

from segcal.functional.pixels import relabel
from segcal.kernels.dispatch import plain_only


@pytest.mark.parametrize("engine", [nullcontext, plain_only])
@pytest.mark.parametrize(
    ("labels", "kept", "wrong"),
    [
        ([0, 1, 2, 9], [0, 1, 2, -1], -1),
        ([9, 2, 3, 4], [-1, 2, 3, 4], 2),  # 3 classes: 3 is the first that is none
        ([2, -1, 9, 5], [2, -1, -1, 5], 1),
        ([255, 255, 0, 0], [-1, -1, 0, 0], -1),
        ([], [], -1),
    ],
)
def test_labels_of_three_classes_by_hand(
    engine: Callable[[], AbstractContextManager[None]], labels: list[int], kept: list[int], wrong: int
) -> None:
    with engine():
        found, first = relabel(torch.tensor(labels, dtype=torch.int64), (9, 255), 3)
    assert (found.tolist(), found.dtype, first) == (kept, torch.int64, wrong)
