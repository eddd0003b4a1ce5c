"""Fits that the tests share: with few penalties, of several passes, and the loss that they leave."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch

from segcal.calibrators import Calibrator, PooledPasses
from segcal.calibrators.shared import context_fit
from segcal.types import Case
from support.scenes import PASS_CLASSES, several_passes


def choose_among_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try none and one penalty of each kind: 4 fits for each fold instead of 30."""
    monkeypatch.setattr(context_fit, "FEATURE_RIDGES", (np.inf, 0.1))
    monkeypatch.setattr(context_fit, "CLASS_RIDGES", (np.inf, 0.01))
    monkeypatch.setattr(context_fit, "PAIR_RIDGES", (np.inf, 0.03))


@cache
def pool_of_passes() -> PooledPasses:
    """Return a calibrator that uses the passes of eight cases, which no test may alter."""
    with pytest.MonkeyPatch.context() as patch:
        choose_among_few(patch)
        found = PooledPasses(PASS_CLASSES).fit(several_passes(8))
    assert found.uses_passes
    return found


def mean_nll(calibrator: Calibrator, cases: Sequence[Case]) -> float:
    """Return the mean negative log-likelihood of all pixels, calibrated slab by slab."""
    losses = []
    for case in cases:
        labels = torch.as_tensor(np.array(case.labels)).long()
        for slab in calibrator.calibrate_case(case):
            logits = slab.logits().double()
            losses.append(
                torch.nn.functional.cross_entropy(logits, labels[slab.rows][None], reduction="none").flatten()
            )
    return float(torch.cat(losses).mean())
