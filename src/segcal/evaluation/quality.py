"""Segmentation quality of each case and method: Dice, surface Dice and surface distances of every structure."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from torch import Tensor

from segcal.evaluation.protocol import Protocol
from segcal.functional.surfaces import LabelQuality, segmentation_quality
from segcal.types import Array, Case

COLUMNS = ("case", "method", "label", "metric", "value")
_FIGURES = {
    "dice": "dice",
    "surface-dice": "surface_dice",
    "asd": "average",
    "md95": "percentile95",
    "md": "maximum",
}
"""Names in the results, and attributes of `LabelQuality`."""


@dataclass
class SurfaceRows:
    """The figures found so far: one row per case, method, structure and figure."""

    protocol: Protocol
    rows: list[tuple[str, str, str, str, float]] = field(default_factory=list)
    _last: tuple[str, Array, tuple[LabelQuality, ...]] | None = None

    def add(self, case: Case, method: str, predicted: Tensor, labels: Tensor) -> None:
        """Add the figures of one method on one case; labels are -1 where they are ignored."""
        prediction, truth = predicted.numpy().reshape(labels.shape), labels.numpy()
        # most methods change no label, so that the figures of the method before are often theirs too
        if self._last is None or self._last[0] != case.name or not np.array_equal(self._last[1], prediction):
            self._last = (case.name, prediction, self._measured(case, prediction, truth))
        for found in self._last[2]:
            name = self.protocol.names[found.label]
            self.rows += [(case.name, method, name, key, getattr(found, own)) for key, own in _FIGURES.items()]

    def _measured(self, case: Case, prediction: Array, truth: Array) -> tuple[LabelQuality, ...]:
        known = truth >= 0
        structures = [k for k in range(self.protocol.num_classes) if k != self.protocol.background]
        return segmentation_quality(
            prediction,
            truth,
            structures,
            spacing=case.spacing,
            tolerance=self.protocol.surface_tolerance,
            inside=None if known.all() else known,
        ).labels

    def frame(self) -> pd.DataFrame | None:
        """Return the rows as a table; None where nothing was measured."""
        return pd.DataFrame(self.rows, columns=list(COLUMNS)) if self.rows else None


def mean_quality(frame: pd.DataFrame, methods: tuple[str, ...]) -> pd.DataFrame:
    """Return the mean of each figure: columns `method metric mean std cases undefined`.

    The mean over the structures of a case is taken first, then that over cases, with their standard deviation. A
    structure that only the prediction or only the truth has counts with a Dice of 0; it has no distance, and
    `undefined` counts such pairs of case and structure.
    """
    rows = []
    for method in methods:
        own = frame[frame.method == method]
        for metric in _FIGURES:
            values = own[own.metric == metric]
            by_case = values.groupby("case", sort=False)["value"].mean().dropna()
            spread = float(by_case.std(ddof=0)) if len(by_case) else float("nan")
            mean = float(by_case.mean()) if len(by_case) else float("nan")
            rows.append((method, metric, mean, spread, len(by_case), int(values["value"].isna().sum())))
    return pd.DataFrame(rows, columns=["method", "metric", "mean", "std", "cases", "undefined"])
