"""Cases laid flat, and reference solutions on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

from segcal.types import Case
from support.scenes import softmax


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


def scores_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Scores and truth `[L, N]` of a case."""
    logits, labels = np.asarray(case.logits), np.asarray(case.labels)
    probs = softmax(logits.reshape(len(logits), -1).astype(np.float64))
    return probs, np.eye(len(logits))[labels.reshape(-1)].T
