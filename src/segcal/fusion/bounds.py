"""The two upper bounds of Table 2: what perfect fusion, and perfect calibration, would give."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Integer

from segcal.functional.arrays import to_array
from segcal.fusion.voting import AtlasLabels, Segmentation, Values, Weights


def best_fusion(labels: AtlasLabels, truth: Segmentation, otherwise: Segmentation) -> Integer[np.ndarray, "*S"]:
    """Return the true label wherever at least one atlas proposes it, and `otherwise` where none does.

    Examples:
        >>> best_fusion(np.array([[1, 2], [0, 2]]), np.array([1, 1]), np.array([0, 2]))
        array([1, 2])
    """
    truth = to_array(truth)
    return np.where((to_array(labels) == truth).any(axis=0), truth, to_array(otherwise))


def best_probabilities(probabilities: Weights, right: Bool[Values, "N *S"]) -> Float[np.ndarray, "N *S"]:
    """Return the probabilities of the bound *Best Calibration*: certain where the network is correct, 1/2 elsewhere.

    The network predicts for each atlas whether its label is right (probability of at least 1/2). Where that prediction
    is correct the predicted answer gets a probability of 1, so the atlas gets 1 or 0; where it is not, the atlas gets
    `1/|L|` = 1/2, as there are two answers.

    Args:
        probabilities: The network's probability that each atlas is right.
        right: Whether it is.

    Examples:
        >>> best_probabilities(np.array([0.9, 0.2, 0.7]), np.array([True, False, False]))
        array([1. , 0. , 0.5])
    """
    right = to_array(right)
    correct = (to_array(probabilities) >= 0.5) == right
    return np.where(correct, right.astype(np.float64), 0.5)
