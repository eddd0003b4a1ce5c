"""Dirichlet calibration (Kull et al. 2019) with off-diagonal and intercept regularisation (DirODIR)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from segcal.calibrators.matrix import MatrixScaling
from segcal.cases.collections import as_collection
from segcal.types import Case, InputError

_GRID = (0.01, 0.1, 1.0, 10.0, 100.0)  # of plain sums, so that useful penalties grow with the number of weights


class DirichletCalibration(MatrixScaling):
    """`softmax(W log p + b)` of the lowest mean NLL plus penalties, with the probabilities `p` (L L + L parameters).

    As matrix scaling, but of log-probabilities: a constant added to all logits of a pixel changes nothing. They are
    taken from the logits directly, so that no probability is rounded to 0 on the way; below that of the smallest
    float32 (-87.3) they count as this much.

    The penalties are plain sums of squares, as in the code of Kull et al. that the paper uses; their printed equation,
    and `matrix` here, divide them by L (L - 1) and L.

    Args:
        num_classes: L.
        off_diagonal_penalty: Lambda of ODIR, times the sum of squares of the off-diagonal weights.
        bias_penalty: Mu of ODIR, times the sum of squares of the biases.
        region: `ignore_index` and `background`, as of every `Calibrator`.
    """

    method = "dirichlet"
    of_log = True

    def _penalties(self) -> tuple[Tensor, Tensor]:
        others = 1 - torch.eye(self.num_classes, dtype=torch.float64)
        every = torch.ones(self.num_classes, dtype=torch.float64)
        return self.off_diagonal_penalty * others, self.bias_penalty * every


def search_dirichlet(
    cases: Iterable[Case],
    validation: Iterable[Case],
    num_classes: int,
    *,
    off_diagonal_penalties: Sequence[float] = _GRID,
    bias_penalties: Sequence[float] = _GRID,
    **settings: Any,
) -> DirichletCalibration:
    """Fit one for each pair of penalties and return the one of least NLL on the validation cases.

    All pairs and their NLL are in `fit_report_.details["search"]`.
    """
    fitting, held_out = as_collection(cases), as_collection(validation)
    if not off_diagonal_penalties or not bias_penalties:
        raise InputError("at least one off_diagonal_penalty and one bias_penalty are needed, got none")
    tried = []
    for off_diagonal, bias in product(off_diagonal_penalties, bias_penalties):
        penalties: dict[str, Any] = {"off_diagonal_penalty": float(off_diagonal), "bias_penalty": float(bias)}
        calibrator = DirichletCalibration(num_classes, **penalties, **settings).fit(fitting)
        tried.append((calibrator.mean_nll(held_out), penalties, calibrator))
    _, _, best = min(tried, key=lambda found: found[0])
    search = [{**penalties, "validation_nll": nll} for nll, penalties, _ in tried]
    best.fit_report_ = replace(best.fit_report_, details={**best.fit_report_.details, "search": search})
    return best
