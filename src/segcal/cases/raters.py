"""Soft labels of several raters as one case per rater."""

from __future__ import annotations

from dataclasses import replace

import numpy as np  # noqa: F401  (for the example)

from segcal.functional.arrays import to_tensor
from segcal.functional.checks import activation_of
from segcal.functional.soft import rater_labels
from segcal.types import Activation, Case, InputError, public


@public
def rater_cases(case: Case, raters: int, *, activation: Activation | None = None) -> list[Case]:
    """Return a case with soft labels as one case per rater, with a label map each, all of one group.

    Fitting and measuring on them is fitting and measuring on the shares: every sum over pixels is linear in the shares
    (see `segcal.functional.soft.rater_labels`). If you have the label map of each rater, make cases of these instead.

    Examples:
        >>> shares = np.array([[[0.5, 1.0]], [[0.5, 0.0]]])  # two classes, one row of two pixels
        >>> first, second = rater_cases(Case("scan", np.zeros((2, 1, 2), np.float32), shares), raters=2)
        >>> first.labels.tolist(), second.labels.tolist(), second.group
        ([[0, 0]], [[1, 0]], 'scan')

    Args:
        case: Its labels are the share of the raters that chose each class, in the shape of its logits. Pixels without a
            vote have shares of 0 and become -1: set `ignore_index=-1`.
        raters: Number of raters.
        activation: "sigmoid" if the shares are those of channels that may overlap, and need not sum to 1.
    """
    if case.labels is None or tuple(case.labels.shape) != tuple(case.logits.shape):
        got = "no labels" if case.labels is None else f"shape {tuple(case.labels.shape)}"
        raise InputError(
            f"shares of raters must have the shape {tuple(case.logits.shape)} of the logits, got {got} of case "
            f"'{case.name}'; give the share of the raters that chose each class"
        )
    shares, kind = to_tensor(case.labels), activation_of(activation, int(case.logits.shape[0]))
    group = case.group or case.name
    return [
        replace(case, name=f"{case.name}-{k + 1}", labels=labels, group=group)
        for k, labels in enumerate(rater_labels(shares, raters, kind))
    ]
