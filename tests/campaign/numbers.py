"""The numbers that commands print, computed from `reader.Data` by plain NumPy in float64."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tests.campaign.reader import Read

FAR = 2
"""Reach of the region Boundary along each axis."""


def region_all(labels: np.ndarray, background: int | None) -> np.ndarray:
    """Return the pixels of the region All: labelled and, with a background, foreground or near a change of label."""
    kept = labels >= 0
    if background is None:
        return kept
    near = np.zeros(labels.shape, bool)
    for axis in range(labels.ndim):
        line = np.moveaxis(labels, axis, 0)
        found = np.moveaxis(near, axis, 0)
        for step in range(1, FAR + 1):
            differs = line[step:] != line[:-step]
            found[step:] |= differs
            found[:-step] |= differs
    inside: np.ndarray = kept & ((labels != background) | near)
    return inside


def pixels_of(cases: Iterable[Read], background: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return logits [L, N] and labels [N] of all pixels in the region All."""
    logits, labels = [], []
    for case in cases:
        if case.labels is None:
            raise ValueError(case.name)
        inside = region_all(case.labels, background)
        logits.append(case.logits[:, inside])
        labels.append(case.labels[inside])
    return np.concatenate(logits, axis=1), np.concatenate(labels)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return log-probabilities over the first axis."""
    below = logits - logits.max(axis=0)
    found: np.ndarray = below - np.log(np.exp(below).sum(axis=0))
    return found


def measures(logits: np.ndarray, labels: np.ndarray, bins: int = 10) -> dict[str, float]:
    """Return pixels, nll, entropy, brier, accuracy and ece over logits [L, N]; only the count where N is 0."""
    pixels = len(labels)
    if not pixels:
        return {"pixels": 0}
    logs = log_softmax(logits)
    probs, at = np.exp(logs), np.arange(pixels)
    predicted = logits.argmax(axis=0)
    confidence, right = probs[predicted, at], predicted == labels
    edges = np.linspace(0, 1, bins + 1)
    index = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    gaps = [abs(right[index == b].sum() - confidence[index == b].sum()) for b in range(bins)]
    one_hot = np.arange(len(logits))[:, None] == labels
    return {
        "pixels": pixels,
        "nll": float(-logs[labels, at].mean()),
        "entropy": float(-(probs * np.where(probs > 0, logs, 0)).sum(axis=0).mean()),
        "brier": float(((probs - one_hot) ** 2).sum(axis=0).mean()),
        "accuracy": float(right.mean()),
        "ece": float(sum(gaps) / pixels),
    }
