"""Flat cases of overconfident scores, for the methods that map scores one by one."""

from __future__ import annotations

import numpy as np

from segcal.types import Case


def flat_case(pixels: int, classes: int = 4, distinct: int | None = None, seed: int = 0) -> Case:
    """Overconfident scores `[L, pixels, 1]` whose labels are drawn from their softened probabilities."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(classes, distinct or pixels)) * 2
    if distinct:
        logits = logits[:, random.integers(0, distinct, pixels)]
    probs = softmax(logits)
    labels = (probs.cumsum(axis=0) > random.random(pixels)).argmax(axis=0)
    return Case("flat", 1.7 * logits[:, :, np.newaxis], labels[:, np.newaxis])


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=0))
    return powers / powers.sum(axis=0)


def scores_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Scores and truth `[L, N]` of a case."""
    logits, labels = np.asarray(case.logits), np.asarray(case.labels)
    probs = softmax(logits.reshape(len(logits), -1).astype(np.float64))
    return probs, np.eye(len(logits))[labels.reshape(-1)].T
