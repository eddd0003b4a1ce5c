"""Segmentation quality of each case and method: Dice, surface Dice and surface distances of every structure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from torch import Tensor

from segcal.functional.surfaces import segmentation_quality
from segcal.types import Array, Case

_FIGURES = {
    "dice": "dice",
    "surface-dice": "surface_dice",
    "asd": "average",
    "md95": "percentile95",
    "hd95": "hausdorff95",
    "md": "maximum",
}
"""Names in the results, and attributes of `LabelQuality`."""
NOTHING = np.zeros((0, 1 + len(_FIGURES)))
"""Metrics of no structure."""


class CaseQuality:
    """The figures of one case; most methods change no label, so that those of the method before are often right."""

    def __init__(self, case: Case, labels: Tensor, structures: Sequence[int], tolerance: float) -> None:
        """Take the labels `[*S]`, which are -1 where they are ignored, and the classes to measure."""
        self.case, self.truth = case, labels.numpy()
        self.structures, self.tolerance = structures, tolerance
        self._last: tuple[Array, Array] | None = None

    def of(self, predicted: Tensor) -> Array:
        """Return a row for each structure of the prediction or the truth: its class, then its metrics `[S, 7]`."""
        prediction = predicted.numpy().reshape(self.truth.shape)
        if self._last is None or not np.array_equal(self._last[0], prediction):
            self._last = (prediction, self._measured(prediction))
        return self._last[1]

    def _measured(self, prediction: Array) -> Array:
        known = self.truth >= 0
        found = segmentation_quality(
            prediction,
            self.truth,
            self.structures,
            spacing=self.case.spacing,
            tolerance=self.tolerance,
            inside=None if known.all() else known,
        )
        rows = [[entry.label, *(getattr(entry, own) for own in _FIGURES.values())] for entry in found.labels]
        return np.array(rows, np.float64).reshape(len(rows), 1 + len(_FIGURES))


def distance_unit(case: Case) -> str:
    """Return the unit of surface distances: mm, that of the spacing, or pixels or voxels where there is none."""
    if case.spacing is not None:
        return "mm"
    return "pixels" if case.logits.ndim == 3 else "voxels"


def mean_quality(frame: pd.DataFrame, column: str, names: Sequence[str]) -> pd.DataFrame:
    """Return the mean of each metric: `method` or `label` (the column of the names), `metric mean std cases undefined`.

    The mean over the structures of a case is taken first, then that over cases, with their standard deviation. A
    structure that only the prediction or only the truth has counts with a Dice of 0; it has no distance, and
    `undefined` counts such pairs of case and structure.
    """
    rows = []
    for name in names:
        own = frame[frame[column] == name]
        for metric in _FIGURES:
            values = own[own.metric == metric]
            by_case = values.groupby("case", sort=False)["value"].mean().dropna()
            spread = (float(by_case.mean()), float(by_case.std(ddof=0)))
            rows.append((name, metric, *spread, len(by_case), int(values["value"].isna().sum())))
    return pd.DataFrame(rows, columns=[column, "metric", "mean", "std", "cases", "undefined"])
