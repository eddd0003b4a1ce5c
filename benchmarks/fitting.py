"""Fitting against netcal, scikit-learn and scipy, on a problem that those can hold; both must find the same optimum."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from benchmarks.timing import console, milliseconds, scene, table
from segcal import CalibrationSuite, Case, create, methods
from segcal.calibrators import Calibrator
from segcal.types import Array

CLASSES = 11
IMAGES = 4
_SMALLEST = 1e-12
_LOWEST = -15.0
_minimise: Any = optimize.minimize  # its types know no function of an array of unknown shape


class Problem(NamedTuple):
    """The same pixels as cases and as one array in float64, which is what the peers take.

    The logits are log-probabilities, so that a method which scales logits and one which scales what it gets back from
    probabilities solve the same problem.
    """

    cases: Sequence[Case]
    probs: Array
    labels: Array

    @classmethod
    def of(cls, images: int) -> Problem:
        """Images of 360 x 480 with the scores of a network and labels that often differ."""
        logits, labels = scene(CLASSES, batch=images)
        # peers cut probabilities off at different places, and would solve different problems
        log_probs = torch.log_softmax(torch.log_softmax(logits, dim=1).clamp(min=_LOWEST), dim=1)
        cases = [Case(f"{k}", log_probs[k], labels[k]) for k in range(images)]
        flat = torch.softmax(log_probs.double(), dim=1).movedim(1, -1).reshape(-1, CLASSES)
        return cls(cases, flat.numpy(), labels.reshape(-1).numpy())


Apply = Callable[[Array], Array]
Peer = Callable[[Array, Array], Apply]
"""Fits on probabilities `[N, L]` and labels `[N]`, and gives the map to calibrated probabilities."""


def netcal_temperature(probs: Array, labels: Array) -> Apply:
    """L-BFGS-B on the NLL of all pixels at once."""
    from netcal.scaling import TemperatureScaling

    peer = TemperatureScaling()
    peer.fit(probs, labels)
    return peer.transform  # type: ignore[no-any-return]


def netcal_vector(probs: Array, labels: Array) -> Apply:
    """Fit netcal's logistic calibration, which is vector scaling where there are more than two classes."""
    from netcal.scaling import LogisticCalibration

    peer = LogisticCalibration()
    peer.fit(probs, labels)
    return peer.transform  # type: ignore[no-any-return]


def sklearn_isotonic(probs: Array, labels: Array) -> Apply:
    """All scores of all classes in one regression, then divided by their sum."""
    from sklearn.isotonic import IsotonicRegression

    hits = (labels[:, None] == np.arange(probs.shape[1])).astype(np.float64)
    peer = IsotonicRegression(out_of_bounds="clip").fit(probs.ravel(), hits.ravel())

    def apply(values: Array) -> Array:
        # the tie-break of the method's authors
        raised = peer.predict(values.ravel()).reshape(values.shape) + 1e-9 * values
        return raised / raised.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]

    return apply


def scipy_ensemble(probs: Array, labels: Array) -> Apply:
    """As the method's authors do it: L-BFGS-B for the temperature, SLSQP for the weights, on all pixels at once."""
    log_probs, rows = np.log(np.maximum(probs, _SMALLEST)), np.arange(len(labels))

    def scaled(values: Array, temperature: float) -> Array:
        raised = np.exp((values - values.max(axis=1, keepdims=True)) / temperature)
        return raised / raised.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]

    def nll(mixed: Array) -> float:
        return float(-np.log(np.maximum(mixed, _SMALLEST)).mean())

    found = _minimise(
        lambda t: nll(scaled(log_probs, float(t[0]))[rows, labels]), [1.0], method="L-BFGS-B", bounds=[(0.05, 5.0)]
    )
    temperature = float(found.x[0])
    parts = np.stack(
        [scaled(log_probs, temperature)[rows, labels], probs[rows, labels], np.full(len(labels), 1 / probs.shape[1])]
    )
    weights = _minimise(
        lambda w: nll(w @ parts),
        [1.0, 0.0, 0.0],
        method="SLSQP",
        bounds=[(0.0, 1.0)] * 3,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        tol=1e-12,
    ).x

    def apply(values: Array) -> Array:
        first = scaled(np.log(np.maximum(values, _SMALLEST)), temperature)
        return weights[0] * first + weights[1] * values + weights[2] / values.shape[1]  # type: ignore[no-any-return]

    return apply


def sklearn_logistic(probs: Array, labels: Array) -> Apply:
    """Dirichlet calibration without penalty is multinomial regression on log-probabilities."""
    from sklearn.linear_model import LogisticRegression

    features = np.log(np.maximum(probs, _SMALLEST))
    peer = LogisticRegression(C=np.inf, max_iter=1000).fit(features, labels)

    def apply(values: Array) -> Array:
        return peer.predict_proba(np.log(np.maximum(values, _SMALLEST)))  # type: ignore[no-any-return]

    return apply


PEERS: dict[str, tuple[str, Peer, dict[str, Any], float]] = {
    "ts": ("netcal TemperatureScaling", netcal_temperature, {}, 10),
    "isotonic": ("scikit-learn IsotonicRegression", sklearn_isotonic, {}, 10),
    "vector": ("netcal LogisticCalibration", netcal_vector, {}, 3),
    "ets": ("scipy L-BFGS-B and SLSQP", scipy_ensemble, {}, 3),
    "dirichlet": (
        "scikit-learn LogisticRegression",
        sklearn_logistic,
        {"off_diagonal_penalty": 0.0, "bias_penalty": 0.0},
        3,
    ),
}
"""By method: the peer's name, its fit, the settings under which both solve one problem, the ratio to be reached."""


def against_peers(chosen: Sequence[str] = (), images: int = IMAGES) -> None:
    """Print the time of each fit, and NLL and ECE of what was found."""
    problem = Problem.of(images)
    unit = milliseconds(
        lambda: [torch.softmax(torch.as_tensor(case.logits), dim=0).max(dim=0) for case in problem.cases]
    )
    title = f"fit on {problem.labels.size:,} pixels of {CLASSES} classes; a softmax+max pass takes {unit:.0f} ms"
    shown = table(title, "what", "ms", "passes", "ratio", "wanted", "NLL", "ECE, %")
    for method in [name for name in PEERS if name in methods() and (not chosen or name in chosen)]:
        name, peer, settings, wanted = PEERS[method]
        calibrator = create(method, CLASSES, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fast = milliseconds(lambda c=calibrator: c.fit(problem.cases), repetitions=3, warm_up=1)  # type: ignore[misc]
            start = perf_counter()
            apply = peer(problem.probs, problem.labels)
            slow = 1e3 * (perf_counter() - start)
            theirs = _theirs(problem, apply)
        ratio = f"{slow / fast:.1f}"
        shown.add_row(f"segcal {method}", f"{fast:.0f}", f"{fast / unit:.0f}", ratio, "", *_ours(problem, calibrator))
        shown.add_row(f"  {name}", f"{slow:.0f}", f"{slow / unit:.0f}", "", f"{wanted:.0f}", *theirs)
    console.print(shown)


def _ours(problem: Problem, calibrator: Calibrator) -> tuple[str, str]:
    with torch.no_grad():
        return _quality(problem, [calibrator(torch.as_tensor(case.logits)[None]) for case in problem.cases])


def _theirs(problem: Problem, apply: Apply) -> tuple[str, str]:
    logs, size = [], len(problem.labels) // len(problem.cases)
    for k in range(len(problem.cases)):
        probs = apply(problem.probs[k * size : (k + 1) * size])
        logs.append(torch.from_numpy(np.log(np.maximum(probs, _SMALLEST))).T.reshape(1, CLASSES, 360, 480))
    return _quality(problem, logs)


def _quality(problem: Problem, scores: Sequence[Tensor]) -> tuple[str, str]:
    suite = CalibrationSuite(CLASSES)
    for case, part in zip(problem.cases, scores, strict=True):
        suite.update(part, torch.as_tensor(case.labels)[None])
    found = suite.compute()["all"]
    return f"{float(found['nll']):.6f}", f"{100 * float(found['ece']):.3f}"
