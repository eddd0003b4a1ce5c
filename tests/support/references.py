"""What the library computes, once more: plain loops over pixels, written from the paper and the DESIGN table.

Nothing here imports segcal. Logits are `[L, N]`, labels `[N]` with a negative label where a pixel is ignored; images
are laid flat by `flat`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import product
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

METRICS = ("ece", "mce", "sce", "ace", "nll", "brier", "entropy", "accuracy", "miou")
Cells = dict[tuple[int, int], list[tuple[float, bool]]]


def flat(logits: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Images `[B, L, *S]` and labels `[B, *S]` as one row of pixels, `[L, N]` and `[N]`."""
    z = np.stack([np.asarray(image, dtype=np.float64).reshape(len(image), -1) for image in logits], axis=1)
    return z.reshape(len(z), -1), np.asarray(labels).astype(np.int64).reshape(-1)


def softmax(logits: np.ndarray) -> np.ndarray:
    z = np.asarray(logits, dtype=np.float64)
    probs = np.empty_like(z)
    for n in range(z.shape[1]):
        powers = [math.exp(value - max(z[:, n])) for value in z[:, n]]
        for c, power in enumerate(powers):
            probs[c, n] = power / math.fsum(powers)
    return probs


def bin_of(value: float, edges: np.ndarray) -> int:
    """The right-closed bin (lo, hi] of a value; what lies outside goes to the nearest."""
    for j in range(len(edges) - 1):
        if value <= edges[j + 1]:
            return j
    return len(edges) - 2


def equal_edges(bins: int) -> np.ndarray:
    return np.array([j / bins for j in range(bins + 1)])


def equal_mass_edges(values: np.ndarray, bins: int) -> np.ndarray:
    return np.percentile(values, np.linspace(0, 100, bins + 1))


def fill(values: np.ndarray, right: np.ndarray, keys: np.ndarray, edges: np.ndarray) -> Cells:
    """The confidence of each pixel, and whether it is right, by key (a class) and bin."""
    cells: Cells = defaultdict(list)
    for value, hit, key in zip(values, right, keys, strict=True):
        cells[int(key), bin_of(value, edges)].append((float(value), bool(hit)))
    return cells


def gap(pixels: list[tuple[float, bool]]) -> float:
    """|accuracy - mean confidence|."""
    return abs(sum(hit for _, hit in pixels) / len(pixels) - math.fsum(value for value, _ in pixels) / len(pixels))


def weighted_gaps(cells: Cells, pixels: int) -> float:
    return math.fsum(len(members) / pixels * gap(members) for members in cells.values())


def mean_iou(predicted: np.ndarray, labels: np.ndarray, classes: int) -> float:
    """Over the classes that are true or predicted somewhere."""
    found = []
    for c in range(classes):
        union = sum(c in (p, y) for p, y in zip(predicted, labels, strict=True))
        if union:
            found.append(sum(p == c and y == c for p, y in zip(predicted, labels, strict=True)) / union)
    return math.fsum(found) / len(found)


def confidences(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities, the winning class (the first of equals) and its probability."""
    probs, predicted = softmax(logits), np.argmax(logits, axis=0)
    return probs, predicted, np.array([probs[c, n] for n, c in enumerate(predicted)])


def readings(logits: np.ndarray, labels: np.ndarray, *, bins: int = 10, form: str = "tables") -> dict[str, float]:
    """Every metric over the pixels that are not ignored; NaN where there is none."""
    kept = labels >= 0
    logits, labels = np.asarray(logits, dtype=np.float64)[:, kept], labels[kept]
    classes, pixels = logits.shape
    if pixels == 0:
        return {**dict.fromkeys(METRICS, math.nan), "pixels": 0}
    probs, predicted, confidence = confidences(logits)
    right, fixed = predicted == labels, equal_edges(bins)
    merged = fill(confidence, right, np.zeros(pixels), fixed)
    sce, ace = sce_and_ace(probs, predicted, labels, bins, form)
    brier = [sum((probs[c, n] - (c == y)) ** 2 for c in range(classes)) for n, y in enumerate(labels)]
    entropy = [-sum(p * math.log(p) for p in probs[:, n] if p > 0) for n in range(pixels)]
    return {
        "ece": weighted_gaps(merged, pixels),
        "mce": max(gap(members) for members in merged.values()),
        "sce": sce,
        "ace": ace,
        "nll": total_nll(logits, labels, 1.0) / pixels,
        "brier": math.fsum(brier) / pixels,
        "entropy": math.fsum(entropy) / pixels,
        "accuracy": sum(right) / pixels,
        "miou": mean_iou(predicted, labels, classes),
        "pixels": pixels,
    }


def sce_and_ace(
    probs: np.ndarray, predicted: np.ndarray, labels: np.ndarray, bins: int, form: str
) -> tuple[float, float]:
    classes, pixels = probs.shape
    fixed = equal_edges(bins)
    if form == "marginal":  # Nixon et al.: one-vs-rest for every class, each class with percentiles of its own
        static, adaptive = [], []
        for c in range(classes):
            right, keys = labels == c, np.full(pixels, c)
            static.append(weighted_gaps(fill(probs[c], right, keys, fixed), pixels))
            cells = fill(probs[c], right, keys, equal_mass_edges(probs[c], bins))
            adaptive.append(math.fsum(gap(members) for members in cells.values()))
        return math.fsum(static) / classes, math.fsum(adaptive) / (classes * bins)
    confidence = np.array([probs[c, n] for n, c in enumerate(predicted)])
    static_cells = fill(confidence, predicted == labels, predicted, fixed)
    adaptive_cells = fill(confidence, predicted == labels, predicted, equal_mass_edges(confidence, bins))
    sce, ace = weighted_gaps(static_cells, pixels), weighted_gaps(adaptive_cells, pixels)
    if form == "equations":
        return sce / classes, math.fsum(gap(members) for members in adaptive_cells.values()) / (classes * bins)
    return sce, ace


def class_table(logits: np.ndarray, labels: np.ndarray, *, bins: int = 10) -> list[dict[str, float]]:
    """What is known of the pixels that are predicted as each class."""
    kept = labels >= 0
    logits, labels = logits[:, kept], labels[kept]
    _, predicted, confidence = confidences(logits)
    rows = []
    for c in range(len(logits)):
        mine = predicted == c
        hits, pixels, support = int(sum(mine & (labels == c))), int(sum(mine)), int(sum(labels == c))
        cells = fill(confidence[mine], labels[mine] == c, np.zeros(pixels), equal_edges(bins))
        row: dict[str, float] = dict.fromkeys(("confidence", "accuracy", "ece", "mce"), math.nan)
        if pixels:
            row = {
                "confidence": math.fsum(confidence[mine]) / pixels,
                "accuracy": hits / pixels,
                "ece": weighted_gaps(cells, pixels),
                "mce": max(gap(members) for members in cells.values()),
            }
        union = pixels + support - hits
        rows.append({**row, "pixels": pixels, "support": support, "iou": hits / union if union else math.nan})
    return rows


def boundary(labels: np.ndarray, *, width: int = 2, ball: bool = False) -> np.ndarray:
    """Pixels of one image `[*S]` whose label differs from that of a neighbour inside the image."""
    near = np.zeros(labels.shape, dtype=bool)
    steps = [
        step
        for step in product(range(-width, width + 1), repeat=labels.ndim)
        if (sum(s * s for s in step) <= width**2 if ball else sum(s != 0 for s in step) == 1)
    ]
    for at in np.ndindex(labels.shape):
        for step in steps:
            there = tuple(a + s for a, s in zip(at, step, strict=True))
            inside = all(0 <= t < length for t, length in zip(there, labels.shape, strict=True))
            if inside and labels[there] != labels[at]:
                near[at] = True
    return near


def total_nll(logits: np.ndarray, labels: np.ndarray, alpha: float) -> float:
    """Sum over labelled pixels of -log softmax(alpha z)[label]."""
    terms = []
    for z, y in zip(np.asarray(logits, dtype=np.float64).T, labels, strict=True):
        if y >= 0:
            below = alpha * (z - z.max())
            terms.append(math.log(math.fsum(math.exp(v) for v in below)) - below[y])
    return math.fsum(terms)


def total_entropy(logits: np.ndarray, labels: np.ndarray, alpha: float) -> float:
    """Sum over labelled pixels of the entropy of softmax(alpha z)."""
    probs = softmax(alpha * np.asarray(logits, dtype=np.float64)[:, labels >= 0])
    return -math.fsum(p * math.log(p) for p in probs.ravel() if p > 0)


def optimal_inverse_temperature(logits: np.ndarray, labels: np.ndarray, *, upper: float = 50.0) -> float:
    """The inverse temperature in 0..upper of least NLL, by golden sections."""
    found = minimize_scalar(
        lambda alpha: total_nll(logits, labels, alpha), bounds=(0, upper), method="bounded", options={"xatol": 1e-12}
    )
    return float(found.x)
