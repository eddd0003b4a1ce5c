"""Every method fitted on the same pixels, beside fiducio, netcal, scikit-learn and scipy where they have the method.

Each row gives seconds, the same time in softmax+max passes over all pixels, and how often segcal went through the
cases. Where a peer has the method, both solve one problem, and should find the same optimum.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from time import perf_counter
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from benchmarks.timing import console, milliseconds, scene, table
from segcal import CalibrationSuite, Case, create
from segcal.cases import CaseStream, StreamedCase
from segcal.types import Array

CLASSES = 11
IMAGES = 2
_CROPS = 2  # along each axis of an image: cross-validation needs several cases
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
        """Return quarters of images of 360 x 480 with the scores of a network and labels that often differ."""
        logits, labels = scene(CLASSES, batch=images)
        # peers cut probabilities off at different places, and would solve different problems
        log_probs = torch.log_softmax(torch.log_softmax(logits, dim=1).clamp(min=_LOWEST), dim=1)
        parts = [
            (z, y)
            for rows in zip(log_probs.chunk(_CROPS, dim=2), labels.chunk(_CROPS, dim=1), strict=True)
            for quarters in [zip(rows[0].chunk(_CROPS, dim=3), rows[1].chunk(_CROPS, dim=2), strict=True)]
            for part in quarters
            for z, y in zip(*part, strict=True)
        ]
        cases = [Case(f"{k}", z.contiguous(), y.contiguous()) for k, (z, y) in enumerate(parts)]
        flat = torch.cat([torch.softmax(z.double(), dim=0).flatten(1).T for z, _ in parts])
        return cls(cases, flat.numpy(), torch.cat([y.flatten() for _, y in parts]).numpy())

    @property
    def logits(self) -> Tensor:
        """All cases as a batch."""
        return torch.stack([torch.as_tensor(case.logits) for case in self.cases])

    @property
    def label_maps(self) -> Tensor:
        """Labels of the batch."""
        return torch.stack([torch.as_tensor(case.labels) for case in self.cases]).long()


Apply = Callable[[Tensor], Tensor]
"""From logits `[1, L, H, W]` to calibrated probabilities."""
Fit = tuple[Callable[[], Any], Apply]
"""A function that fits, and the map that it then gives."""

_NO_PENALTY = {"off_diagonal_penalty": 0.0, "bias_penalty": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("matrix", "msc", "dirichlet", "cmsap", "cmsop"), _NO_PENALTY),
    "cts with pairs": {"pairs": True},
    "auto": {"candidates": ["ts", "ets", "classwise", "cts", "cts+classes", "cts+pairs"]},
}
"""Settings of segcal under which it solves the problem of its peers, or that the name of a row stands for."""
METHODS = (
    "ts", "ets", "bts", "ats", "classwise", "cts", "cts with pairs", "auto", "isotonic", "histogram", "beta",
    "vector", "svs", "matrix", "msc", "dirichlet", "cmsop", "cmsap",
)  # fmt: skip
_FIDUCIO = {
    "ts": "TemperatureScaling",
    "ets": "EnsembleTemperatureScaling",
    "vector": "VectorScaling",
    "matrix": "MatrixScaling",
    "msc": "TranslationInvariantMatrixScaling",
    "dirichlet": "DirichletCalibration",
    "cmsap": "ArgmaxPreservingMatrixScaling",
    "cmsop": "OrderPreservingMatrixScaling",
}
_NETCAL = {"ts": "TemperatureScaling", "vector": "LogisticCalibration"}


def ours(method: str, problem: Problem) -> Fit:
    """segcal, from its stream of cases."""
    calibrator = create(method.split(maxsplit=1)[0], CLASSES, **SETTINGS.get(method, {}))
    return lambda: calibrator.fit(problem.cases), calibrator.predict_proba


def fiducio(optimizer: str, method: str, problem: Problem) -> Fit:
    """Fiducio on all pixels at once: 200 steps of Adam, its default, or its L-BFGS."""
    peer = getattr(import_module("fiducio"), _FIDUCIO[method])(optimizer=optimizer, device="cpu")
    logits, labels = problem.logits, problem.label_maps
    return lambda: peer.fit(logits, labels), peer.transform


def netcal(method: str, problem: Problem) -> Fit:
    """Netcal's logistic calibration is vector scaling where there are more than two classes."""
    peer = getattr(import_module("netcal.scaling"), _NETCAL[method])()
    return lambda: peer.fit(problem.probs, problem.labels), _by_rows(peer.transform)


def sklearn_isotonic(method: str, problem: Problem) -> Fit:
    """All scores of all classes in one regression, then divided by their sum."""
    from sklearn.isotonic import IsotonicRegression

    peer = IsotonicRegression(out_of_bounds="clip")

    def fit() -> None:
        hits = (problem.labels[:, None] == np.arange(CLASSES)).astype(np.float64)
        peer.fit(problem.probs.ravel(), hits.ravel())

    def apply(probs: Array) -> Array:
        # the tie-break of the method's authors
        raised = peer.predict(probs.ravel()).reshape(probs.shape) + 1e-9 * probs
        return raised / raised.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]

    return fit, _by_rows(apply)


def sklearn_logistic(method: str, problem: Problem) -> Fit:
    """Dirichlet calibration without penalty is multinomial regression on log-probabilities."""
    from sklearn.linear_model import LogisticRegression

    peer = LogisticRegression(C=np.inf, max_iter=1000)
    fit = lambda: peer.fit(np.log(np.maximum(problem.probs, _SMALLEST)), problem.labels)  # noqa: E731
    return fit, _by_rows(lambda probs: peer.predict_proba(np.log(np.maximum(probs, _SMALLEST))))


def scipy_ensemble(method: str, problem: Problem) -> Fit:
    """As the method's authors do it: L-BFGS-B for the temperature, SLSQP for the weights, on all pixels at once."""
    found: dict[str, Any] = {}

    def scaled(values: Array, temperature: float) -> Array:
        raised = np.exp((values - values.max(axis=1, keepdims=True)) / temperature)
        return raised / raised.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]

    def nll(mixed: Array) -> float:
        return float(-np.log(np.maximum(mixed, _SMALLEST)).mean())

    def fit() -> None:
        labels, rows = problem.labels, np.arange(len(problem.labels))
        log_probs = np.log(np.maximum(problem.probs, _SMALLEST))
        one = _minimise(
            lambda t: nll(scaled(log_probs, float(t[0]))[rows, labels]), [1.0], method="L-BFGS-B", bounds=[(0.05, 5.0)]
        )
        found["temperature"] = float(one.x[0])
        tempered = scaled(log_probs, found["temperature"])[rows, labels]
        parts = np.stack([tempered, problem.probs[rows, labels], np.full(len(labels), 1 / CLASSES)])
        found["weights"] = _minimise(
            lambda w: nll(w @ parts),
            [1.0, 0.0, 0.0],
            method="SLSQP",
            bounds=[(0.0, 1.0)] * 3,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            tol=1e-12,
        ).x

    def apply(probs: Array) -> Array:
        first, weights = scaled(np.log(np.maximum(probs, _SMALLEST)), found["temperature"]), found["weights"]
        return weights[0] * first + weights[1] * probs + weights[2] / CLASSES  # type: ignore[no-any-return]

    return fit, _by_rows(apply)


def _by_rows(apply: Callable[[Array], Array]) -> Apply:
    """Return the map of logits for a map of probabilities `[N, L]` in float64."""

    def mapped(logits: Tensor) -> Tensor:
        rows = torch.softmax(logits.double(), dim=1).movedim(1, -1)
        found = np.asarray(apply(rows.reshape(-1, CLASSES).numpy()))
        return torch.from_numpy(found).view(rows.shape).movedim(-1, 1)

    return mapped


Peer = tuple[str, Callable[[str, Problem], Fit]]


def peers_of(method: str) -> Iterator[Peer]:
    """Yield names and fits of the installed peers that have a method."""
    if method in _FIDUCIO and find_spec("fiducio"):
        yield "fiducio, Adam", partial(fiducio, "adam")
        yield "fiducio, L-BFGS", partial(fiducio, "lbfgs")
    if method in _NETCAL and find_spec("netcal"):
        yield f"netcal {_NETCAL[method]}", netcal
    if method == "isotonic":
        yield "scikit-learn IsotonicRegression", sklearn_isotonic
    if method == "dirichlet":
        yield "scikit-learn LogisticRegression", sklearn_logistic
    if method == "ets":
        yield "scipy L-BFGS-B and SLSQP", scipy_ensemble


def against_peers(chosen: Sequence[str] = (), images: int = IMAGES) -> None:
    """Print the time of each fit in seconds and in passes, and NLL and ECE of what was found."""
    problem = Problem.of(images)
    unit = milliseconds(
        lambda: [torch.softmax(torch.as_tensor(case.logits), dim=0).max(dim=0) for case in problem.cases]
    )
    title = f"fit on {problem.labels.size:,} pixels of {CLASSES} classes; a softmax+max pass takes {unit:.0f} ms"
    columns = ("what", "s", "softmax passes", "passes over the cases", "times segcal", "NLL", "ECE, %")
    shown = table(title, *columns)
    for method in [name for name in METHODS if not chosen or name in chosen]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours(method, Problem.of(1))[0]()  # compiles and loads what it needs
            fit, apply = ours(method, problem)
            with counted_passes(len(problem.cases)) as passes:
                fast = _seconds(fit)
            work = f"{1e3 * fast / unit:.0f}"
            shown.add_row(f"segcal {method}", f"{fast:.2f}", work, f"{passes[0]:.1f}", "", *_quality(problem, apply))
            for name, peer in peers_of(method):
                fit, apply = peer(method, problem)
                slow = _seconds(fit)
                row = f"{slow:.2f}", f"{1e3 * slow / unit:.0f}", "", f"{slow / fast:.1f}"
                shown.add_row(f"  {name}", *row, *_quality(problem, apply))
    console.print(shown)


@contextmanager
def counted_passes(cases: int) -> Iterator[list[float]]:
    """Count how often streams go through all the cases, in the first entry of a list."""
    passes, iterate = [0.0], CaseStream.__iter__

    def counted(stream: CaseStream) -> Iterator[StreamedCase]:
        for case in iterate(stream):
            passes[0] += 1 / cases
            yield case

    with patch.object(CaseStream, "__iter__", counted):
        yield passes


def _seconds(function: Callable[[], Any]) -> float:
    started = perf_counter()
    function()
    return perf_counter() - started


def _quality(problem: Problem, apply: Apply) -> tuple[str, str]:
    suite = CalibrationSuite(CLASSES)
    with torch.no_grad():
        for logits, labels in zip(problem.logits, problem.label_maps, strict=True):
            probs = apply(logits[None]).double().clamp(min=_SMALLEST)
            suite.update(probs.log(), labels[None])
    found = suite.compute()["all"]
    return f"{float(found['nll']):.6f}", f"{100 * float(found['ece']):.3f}"
