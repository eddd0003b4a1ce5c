"""Cases laid flat for reference solutions, and data that say too little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

from segcal.data.sample.scenes import simulate
from segcal.types import Case


def noisy(count: int = 3, classes: int = 4, size: tuple[int, ...] = (30, 24), seed: int = 1) -> list[Case]:
    """Scenes whose classes are biased and scaled each in its own way, so that no temperature can correct them."""
    rng = np.random.default_rng(seed)
    scale, shift = rng.uniform(0.4, 2.0, classes), rng.normal(size=classes)
    cases = []
    for scene in simulate(count, num_classes=classes, size=size, contrast=2.0, seed=seed):
        by_class = (slice(None), *(np.newaxis,) * len(size))
        logits = np.asarray(scene.true_logits) * scale[by_class] + shift[by_class]
        cases.append(Case(scene.case.name, logits.astype(np.float32), scene.case.labels, scene.case.image))
    return cases


def table(cases: Sequence[Case]) -> tuple[np.ndarray, np.ndarray]:
    """All pixels as rows: float64 logits `[N, L]` and labels `[N]`."""
    logits = [np.asarray(case.logits, np.float64).reshape(len(case.logits), -1).T for case in cases]
    return np.concatenate(logits), np.concatenate([np.asarray(case.labels).ravel() for case in cases]).astype(int)


def mean_nll(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(-log_softmax(scores, axis=1)[np.arange(len(labels)), labels].mean())


def affine_reference(
    x: np.ndarray,
    labels: np.ndarray,
    *,
    diagonal: bool,
    off_diagonal: float = 0.0,
    bias: float = 0.0,
    sums: bool = False,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Weights, biases and objective of least mean NLL plus penalties, by plain L-BFGS on the whole table.

    Written from the equation, with the pull of 1e-7 towards the identity that makes the answer unique. Penalties weigh
    means of squares, or plain `sums`.
    """
    n, classes = x.shape
    off_diagonal, bias = (off_diagonal, bias) if sums else (off_diagonal / (classes * (classes - 1)), bias / classes)
    truth = np.eye(classes)[labels]

    def parts(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if diagonal:
            return np.diag(theta[:classes]), theta[classes:]
        return theta[: classes**2].reshape(classes, classes), theta[classes**2 :]

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        w, b = parts(theta)
        log_probs = log_softmax(x @ w.T + b, axis=1)
        others = w - np.diag(np.diag(w))
        value = -(truth * log_probs).sum() / n
        value += off_diagonal * (others**2).sum() + bias * (b**2).sum()
        value += 1e-7 * (((w - np.eye(classes)) ** 2).sum() + (b**2).sum())
        residual = (np.exp(log_probs) - truth) / n
        slope_w = residual.T @ x + 2 * off_diagonal * others + 2e-7 * (w - np.eye(classes))
        slope_b = residual.sum(axis=0) + 2 * bias * b + 2e-7 * b
        return value, np.concatenate([np.diag(slope_w) if diagonal else slope_w.ravel(), slope_b])

    identity = np.ones(classes) if diagonal else np.eye(classes).ravel()
    options = {"maxiter": 20000, "maxfun": 40000, "ftol": 0.0, "gtol": 1e-9, "maxcor": 50}
    found = minimize(
        objective, np.concatenate([identity, np.zeros(classes)]), jac=True, method="L-BFGS-B", options=options
    )
    return (*parts(found.x), float(found.fun))


def degenerate() -> dict[str, list[Case]]:
    """Three classes, of which the labels say too little, or nothing that agrees with the logits."""
    rng = np.random.default_rng(0)
    z = (3 * rng.normal(size=(3, 12, 12))).astype(np.float32)
    labels: dict[str, Any] = {
        "one class only": np.full((12, 12), 1),
        "a class never present": rng.integers(0, 2, (12, 12)),
        "all right": z.argmax(axis=0),
        "all wrong": z.argmin(axis=0),
    }
    cases = {name: [Case(name, z, truth)] for name, truth in labels.items()}
    cases["two pixels"] = [Case("two pixels", z[:, :1, :2], np.array([[0, 1]]))]
    return cases
