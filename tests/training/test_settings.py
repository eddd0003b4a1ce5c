"""Whether the loss was still falling when training ended, by hand."""

from __future__ import annotations

import math

import pytest

from segcal.training.settings import Epoch, History


def history(losses: list[float], validation: bool = True) -> History:
    epochs = [
        Epoch(k + 1, len(losses), 9.0 if validation else loss, loss if validation else None, False, 0.0)
        for k, loss in enumerate(losses)
    ]
    return History(epochs)


@pytest.mark.parametrize(
    ("losses", "falling"),
    [
        ([1.0] * 20, False),
        ([2.0, *[1.0] * 17, 1.0, 0.9], True),  # the last two of twenty epochs decide
        ([2.0, *[1.0] * 16, 0.9, 1.0, 1.0], False),
        ([1.0] * 19 + [0.99999], False),  # less than 0.01 %
        ([1.0, 0.5], True),
        ([0.5, 1.0], False),
        ([1.0, math.nan], False),
        ([math.nan, math.nan], False),
        ([1.0], True),  # which cannot tell
    ],
)
def test_whether_the_loss_is_still_falling(losses: list[float], falling: bool) -> None:
    assert history(losses).is_falling == history(losses, validation=False).is_falling == falling


@pytest.mark.parametrize(
    ("losses", "epochs"),
    [
        ([1.0], 0),
        ([1.0, 0.9, 0.9, 0.9], 2),
        ([1.0, 1.1, 0.8], 0),
        ([1.0, 0.99995, 0.99991, 0.99987, 0.99985], 1),  # a slow decrease adds up to 0.01 % in the fourth epoch
        ([math.nan, math.nan], 2),
        ([math.inf, 1.0, math.nan], 1),
    ],
)
def test_epochs_without_decrease(losses: list[float], epochs: int) -> None:
    assert history(losses).epochs_without_decrease() == epochs
    assert history(losses, validation=False).epochs_without_decrease() == epochs
