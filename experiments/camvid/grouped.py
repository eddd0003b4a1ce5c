"""A better protocol where all frames to fit on are of one video: cross-validation over blocks of time.

Frames two steps apart are nearly equal, so 11 of them spread among the other 90 say nothing about overfitting. Here
each block of time in turn is left out: the number of epochs, and how far to go from TS to LTS, are those that do best
on what was left out. All frames are then fitted on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from experiments.datasets.camvid import CLASSES, VOID, time_blocks
from segcal.calibrators import Learned, LocalTemperatureScaling, TemperatureCalibrator, TemperatureScaling, create
from segcal.calibrators.shared.survey import summed_nll
from segcal.cases import CaseStream
from segcal.types import Case, Image, Logits, Temperature

SHARES = tuple(float(share) for share in np.linspace(0, 1, 11))
_PATIENCE = 25


class ShrunkTemperature(TemperatureCalibrator):
    """The temperature `T_global ** (1 - share) * T_local ** share` of two fitted calibrators."""

    method = "shrunk"
    context = LocalTemperatureScaling.context

    def __init__(self, one: TemperatureScaling, local: LocalTemperatureScaling, share: float) -> None:
        super().__init__(local.num_classes, ignore_index=local.ignore_index)
        self.one, self.local, self.share = one, local, share
        self.image_channels = local.image_channels
        self.to(local.fitted.device)
        self.fit_report_ = local.fit_report_
        self.fitted.fill_(True)

    def _learn(self, stream: CaseStream, *, validation: CaseStream | None, settings: Any) -> Learned:
        raise NotImplementedError("its parts are fitted")

    def _temperature(self, logits: Logits, image: Image | None = None) -> Temperature:
        """Return temperatures between the one and the local ones, on the scale of logarithms."""
        near, far = self.local._temperature(logits, image), self.one._temperature(logits, image)
        return torch.exp(torch.lerp(far.log().to(near.dtype), near.log(), self.share)).clamp(*self.bounds)


@dataclass(frozen=True)
class Choice:
    """Return epochs and share chosen on the blocks left out, with the evidence for each."""

    epochs: int
    share: float
    best_epochs: tuple[int, ...]
    nll: Mapping[float, float]


def choose(cases: Sequence[Case], *, epochs: int, folds: int, seed: int, device: str) -> Choice:
    """Leave out each block of time in turn; the median of the best epochs, and the share of least NLL in total."""
    by_name = {case.name: case for case in cases}
    best, totals, pixels = [], dict.fromkeys(SHARES, 0.0), 0
    for left_out in time_blocks(list(by_name), folds):
        held = [by_name[name] for name in left_out]
        rest = [case for name, case in by_name.items() if name not in left_out]
        one, local = temperature_pair(
            rest, epochs=epochs, seed=seed, device=device, validation=held, patience=_PATIENCE
        )
        best.append(int(local.fit_report_.details["best_epoch"]))
        for share in SHARES:
            shrunk = ShrunkTemperature(one, local, share)
            nll, count = summed_nll(shrunk, shrunk.stream(held))
            totals[share] += nll
        pixels += count
    share = min(totals, key=lambda share: totals[share])
    return Choice(
        max(1, round(float(np.median(best)))), share, tuple(best), {s: nll / pixels for s, nll in totals.items()}
    )


def temperature_pair(
    cases: Sequence[Case], *, epochs: int, seed: int, device: str, **settings: Any
) -> tuple[TemperatureScaling, LocalTemperatureScaling]:
    """TS and LTS fitted on the same cases."""
    one = create("ts", len(CLASSES), ignore_index=VOID).to(device)
    local = create("lts", len(CLASSES), image_channels=3, ignore_index=VOID).to(device)
    assert isinstance(one, TemperatureScaling)
    assert isinstance(local, LocalTemperatureScaling)
    return one.fit(cases), local.fit(cases, epochs=epochs, seed=seed, device=device, **settings)
